//! Model of a run of the rendezvous, as its agents see it.
//!
//! No fact that an agent has received is ever revoked (INV-L1):
//!
//! | event | consequence |
//! |---|---|
//! | the run is over | an agent closed it, and it forms no further round |
//! | a rank in a round | no other agent has it, and round numbers only grow |
//! | the next round | it forms only after every member of this one has left it explicitly |
//! | a leave is acknowledged | no later round counts the agent |
//! | all have succeeded | all have reported so, and none receives instead that the round is over |
//!
//! A join takes effect twice: when the agent drops its current round and waits, and when it enters
//! the next one. An agent that has ended, or may rightly count as lost, blocks no other agent.

use std::collections::{BTreeMap, BTreeSet};

use super::Model;

/// Unique number of an agent.
pub type Agent = u64;

/// Run of the rendezvous, as the model of a history.
#[derive(Debug, Clone)]
pub struct Run;

/// Operation of an agent, or a message to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Number of the agent.
    pub agent: Agent,
    /// Effect of the operation.
    pub effect: Effect,
}

/// Effect of an operation or a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The agent no longer holds a round, and waits for the next one.
    Arrive,
    /// The agent is in a round, with this rank; the size is 0 if unknown.
    Enter(Assignment),
    /// The agent leaves the run.
    Leave,
    /// No agent needs to wait for this one any more.
    MayBeLost,
    /// The run is over from now on.
    Close,
    /// The agent receives this status; `true` if the run is over.
    IsClosed(bool),
    /// The agent's workers have succeeded in a round.
    Succeed(u64),
    /// The agent receives that the workers of all agents have succeeded.
    AllSucceeded(u64),
    /// The agent has reported success, and receives that the round is over.
    IsOver(u64),
}

/// Rank of an agent in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// Number of the round.
    pub round: u64,
    /// Rank of the agent.
    pub rank: u32,
    /// Number of agents in the round.
    pub size: u32,
}

/// Facts of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    closed: bool,
    /// Last round; 0 before the first one, whose number may also be 0.
    round: u64,
    size: u32,
    ranks: BTreeMap<u32, Agent>,
    /// Agents that hold the round.
    ///
    /// `waiting` are the agents that wait for the next round, and `may_be_lost` block no other
    /// agent.
    members: BTreeSet<Agent>,
    waiting: BTreeSet<Agent>,
    may_be_lost: BTreeSet<Agent>,
    /// Agents that have reported success in the round.
    said: BTreeSet<Agent>,
    succeeded: bool,
    over: bool,
}

impl State {
    fn is_known(&self, round: u64) -> bool {
        !self.ranks.is_empty() && round <= self.round
    }

    fn enter(&mut self, agent: Agent, assignment: Assignment) -> bool {
        let Assignment { round, rank, size } = assignment;
        if self.closed || !self.waiting.contains(&agent) {
            return false;
        }
        if !self.is_known(round) {
            let enough = size as usize <= self.waiting.len();
            if !enough || !self.members.is_subset(&self.may_be_lost) {
                return false;
            }
            (self.round, self.size) = (round, size);
            (self.succeeded, self.over) = (false, false);
            self.ranks.clear();
            self.members.clear();
            self.said.clear();
        }
        self.waiting.remove(&agent);
        self.members.insert(agent);
        let is_free = self.ranks.insert(rank, agent).is_none();
        is_free && (self.round, self.size) == (round, size)
    }
}

impl Model for Run {
    type State = State;
    type Call = Call;
    type Answer = ();

    fn step(state: &State, call: &Call, _: Option<&()>) -> Option<State> {
        let agent = call.agent;
        let mut after = state.clone();
        let mut is_right = true;
        match call.effect {
            Effect::Arrive => {
                after.members.remove(&agent);
                after.waiting.insert(agent);
            }
            Effect::Enter(assignment) => is_right = after.enter(agent, assignment),
            Effect::Leave => {
                after.members.remove(&agent);
                after.waiting.remove(&agent);
            }
            Effect::MayBeLost => drop(after.may_be_lost.insert(agent)),
            Effect::Close => after.closed = true,
            Effect::IsClosed(closed) => is_right = closed == state.closed,
            Effect::Succeed(round) => {
                if state.round == round {
                    after.said.insert(agent);
                }
            }
            Effect::AllSucceeded(round) => {
                let all = state.size == 0 || state.said.len() == state.size as usize;
                let is_first = all && !state.over;
                after.succeeded = true;
                is_right = state.round == round && (state.succeeded || is_first);
            }
            Effect::IsOver(round) => {
                after.over |= state.round == round;
                is_right = !(state.round == round && state.succeeded);
            }
        }
        is_right.then_some(after)
    }

    fn is_free(state: &State, call: &Call) -> bool {
        match call.effect {
            Effect::Arrive | Effect::MayBeLost | Effect::IsClosed(_) | Effect::Succeed(_) => true,
            Effect::Enter(assignment) => state.is_known(assignment.round),
            Effect::Leave => !state.waiting.contains(&call.agent),
            Effect::Close => state.closed,
            Effect::AllSucceeded(_) => state.succeeded,
            Effect::IsOver(round) => state.over || state.round > round,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::super::record::{Event, Record};
    use super::Assignment;

    use Event::{
        AllSucceeded, Asks, Closed, Closes, IsOver, Joined, Joins, Leaves, Left, MayBeLost,
        Refused, Status, Succeeds,
    };

    fn assignment(round: u64, rank: u32, size: u32) -> Event {
        Joined(Assignment { round, rank, size })
    }

    /// `true` if a sequence of events is a correct history.
    fn is_right(events: &[(u64, Event)]) -> bool {
        let mut record = Record::default();
        for (at, (agent, event)) in (1..).zip(events) {
            record.note(at * 10, *agent, *event);
        }
        check(&record.operations).is_ok()
    }

    const PAIR: [(u64, Event); 4] = [
        (1, Joins),
        (2, Joins),
        (
            1,
            Joined(Assignment {
                round: 0,
                rank: 0,
                size: 2,
            }),
        ),
        (
            2,
            Joined(Assignment {
                round: 0,
                rank: 1,
                size: 2,
            }),
        ),
    ];

    fn after_pair(events: &[(u64, Event)]) -> bool {
        is_right(&[&PAIR, events].concat())
    }

    #[test]
    fn events_of_a_run_in_order_are_accepted() {
        assert!(after_pair(&[
            (1, Joins),
            (2, Joins),
            (2, assignment(1, 1, 2)),
            (1, assignment(1, 0, 2)),
            (1, Succeeds(1)),
            (2, Succeeds(1)),
            (2, AllSucceeded(1)),
            (1, AllSucceeded(1)),
            (3, Asks),
            (3, Status(false)),
            (2, Closes),
            (2, Closed),
            (1, Closed),
            (3, Joins),
            (3, Refused { closed: true }),
            (3, Asks),
            (3, Status(true)),
        ]));
    }

    #[test]
    fn late_answers_are_accepted() {
        // The members of a round join it after the close; and one learns of a round when the next
        // one exists.
        assert!(is_right(&[
            (1, Joins),
            (2, Joins),
            (1, assignment(0, 0, 2)),
            (1, Closes),
            (1, Closed),
            (2, assignment(0, 1, 2)),
        ]));
        assert!(is_right(&[
            (1, Joins),
            (2, Joins),
            (1, assignment(0, 0, 2)),
            (2, MayBeLost),
            (3, Joins),
            (1, Joins),
            (1, assignment(1, 0, 2)),
            (2, assignment(0, 1, 2)),
            (3, assignment(1, 1, 2)),
        ]));
    }

    #[test]
    fn a_closed_run_forms_no_round() {
        let closed = [(1, Closes), (1, Closed)];
        assert!(!after_pair(
            &[
                &closed[..],
                &[(3, Joins), (4, Joins), (3, assignment(1, 0, 2))]
            ]
            .concat()
        ));
        assert!(!after_pair(
            &[&closed[..], &[(3, Asks), (3, Status(false))]].concat()
        ));
        // The close may not have arrived.
        let unheard = [(1, Closes), (3, Asks), (3, Status(false))];
        assert!(after_pair(&unheard));
        // No agent has closed the run.
        assert!(!after_pair(&[(3, Joins), (3, Refused { closed: true })]));
        assert!(!after_pair(&[(1, Closed)]));
        // The run is over, and open again.
        let told = [(3, Joins), (3, Refused { closed: true })];
        let open = [(3, Asks), (3, Status(false))];
        assert!(!after_pair(&[&[(1, Closes)], &told[..], &open].concat()));
    }

    #[test]
    fn a_join_that_was_acknowledged_is_not_forgotten() {
        let next = [
            (1, Joins),
            (3, Joins),
            (1, assignment(1, 0, 2)),
            (3, assignment(1, 1, 2)),
        ];
        // The second agent holds its round.
        assert!(!after_pair(&next));
        // The second agent has joined again, has left, or may be lost.
        for gives_up in [(2, Joins), (2, Leaves), (2, MayBeLost)] {
            assert!(
                after_pair(&[&[gives_up], &next[..]].concat()),
                "{gives_up:?}"
            );
        }
    }

    #[test]
    fn a_leave_that_was_acknowledged_is_not_forgotten() {
        // A round of two counts an agent that has left.
        let left = [(2, Joins), (2, Leaves), (2, Left)];
        let round = [(1, Joins), (1, assignment(0, 0, 2))];
        assert!(!is_right(&[&left[..], &round].concat()));
        // The leave may not have arrived.
        assert!(is_right(&[&left[..2], &round].concat()));
    }

    #[test]
    fn ranks_and_rounds_are_given_once() {
        let mut same = PAIR;
        same[3].1 = assignment(0, 0, 2);
        assert!(!is_right(&same));
        same[3].1 = assignment(0, 1, 3);
        assert!(!is_right(&same));
        // A round with an earlier number.
        assert!(!after_pair(&[
            (1, Joins),
            (2, Joins),
            (1, assignment(1, 0, 2)),
            (2, assignment(1, 1, 2)),
            (1, Joins),
            (2, Joins),
            (1, assignment(0, 0, 2)),
        ]));
    }

    #[test]
    fn a_success_that_was_acknowledged_is_not_taken_back() {
        // The success of one out of two is not the success of all.
        assert!(!after_pair(&[(1, Succeeds(0)), (1, AllSucceeded(0))]));
        let all = [(1, Succeeds(0)), (2, Succeeds(0)), (1, AllSucceeded(0))];
        assert!(after_pair(&all));
        assert!(!after_pair(&[&all[..], &[(2, IsOver(0))]].concat()));
        // An agent that knows the success may receive that others have left.
        let told = [(2, AllSucceeded(0)), (2, IsOver(0))];
        assert!(after_pair(&[&all[..], &told].concat()));
        // This holds also after a repeated report. The agent may receive the success again when the
        // others are in another round.
        let again = [(2, AllSucceeded(0)), (2, Succeeds(0)), (2, IsOver(0))];
        assert!(after_pair(&[&all[..], &again].concat()));
        let late = [
            (1, Joins),
            (3, Joins),
            (2, MayBeLost),
            (1, assignment(1, 0, 2)),
            (3, assignment(1, 1, 2)),
            (2, Succeeds(0)),
            (2, AllSucceeded(0)),
            (2, IsOver(0)),
        ];
        assert!(after_pair(&[&all[..], &late].concat()));
        // An agent that never received the success gets no other answer for a repeated report.
        let twice = [(2, Succeeds(0)), (2, IsOver(0))];
        assert!(!after_pair(&[&all[..], &twice].concat()));
        assert!(!after_pair(&[
            (1, Succeeds(0)),
            (2, Succeeds(0)),
            (2, IsOver(0)),
            (1, AllSucceeded(0)),
        ]));
    }
}
