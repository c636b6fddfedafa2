//! Conversion of the events of a run's agents into operations.

use std::collections::BTreeMap;

use super::Operation;
use super::run::{Agent, Assignment, Call, Effect, Run};

/// Event of an agent, in the agent's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The agent wants to be in the next round.
    Joins,
    /// The agent is in a round.
    Joined(Assignment),
    /// The coordinator refuses the agent.
    Refused {
        /// `true` if the reason is that the run is over.
        closed: bool,
    },
    /// The agent leaves.
    Leaves,
    /// The leave is acknowledged.
    Left,
    /// The agent closes the run.
    Closes,
    /// The run is over, because this agent or another one closed it.
    Closed,
    /// The agent asks for the status of the run.
    Asks,
    /// Answer to the status request: `true` if the run is over.
    Status(bool),
    /// The agent's workers have succeeded in this round.
    Succeeds(u64),
    /// The workers of all agents have succeeded.
    AllSucceeded(u64),
    /// The round is over.
    IsOver(u64),
    /// The agent has ended, or a fault may rightly make it count as lost.
    MayBeLost,
}

/// Converter of events into operations.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Operations until now.
    pub operations: Vec<Operation<Run>>,
    agents: BTreeMap<Agent, Standing>,
}

/// Operations of an agent that wait for an answer.
///
/// Each but `asked` has its index in `operations`; some have the time since which the agent waits.
#[derive(Debug, Clone, Default)]
struct Standing {
    joining: Option<(usize, u64)>,
    leaving: Option<usize>,
    closing: Option<usize>,
    asked: Option<u64>,
    said: Option<(usize, u64, u64)>,
    /// Round in which, as the agent knows, all have succeeded.
    all_succeeded: Option<u64>,
    /// Time at which the agent last entered a round.
    open_at: u64,
}

impl Record {
    /// Records an event of an agent.
    pub fn note(&mut self, at: u64, agent: Agent, event: Event) {
        let mut standing = self.agents.remove(&agent).unwrap_or_default();
        match event {
            Event::Joins => {
                standing.joining = Some((self.call(at, agent, Effect::Arrive), at));
                standing.said = None;
                standing.all_succeeded = None;
            }
            Event::Joined(assignment) => {
                if let Some((arrival, since)) = standing.joining.take() {
                    self.answer(arrival, at);
                    self.seen(since, at, agent, Effect::Enter(assignment));
                }
                standing.open_at = at;
            }
            Event::Refused { closed } => {
                if let Some((_, since)) = standing.joining.take()
                    && closed
                {
                    self.seen(since, at, agent, Effect::IsClosed(true));
                }
            }
            Event::Leaves => standing.leaving = Some(self.call(at, agent, Effect::Leave)),
            Event::Left => {
                if let Some(leave) = standing.leaving.take() {
                    self.answer(leave, at);
                }
            }
            Event::Closes => standing.closing = Some(self.call(at, agent, Effect::Close)),
            Event::Closed => match standing.closing.take() {
                Some(close) => self.answer(close, at),
                None => self.seen(standing.open_at, at, agent, Effect::IsClosed(true)),
            },
            Event::Asks => standing.asked = Some(at),
            Event::Status(closed) => {
                if let Some(since) = standing.asked.take() {
                    self.seen(since, at, agent, Effect::IsClosed(closed));
                }
            }
            Event::Succeeds(round) => {
                // A repeated report is not a new one: the answer to the first report answers all of
                // them. An agent that knows the success may still receive that others have left,
                // also after it has repeated its report.
                let has_said = standing.said.is_some_and(|(_, _, of)| of == round);
                if !has_said && standing.all_succeeded != Some(round) {
                    let said = self.call(at, agent, Effect::Succeed(round));
                    standing.said = Some((said, at, round));
                }
            }
            Event::AllSucceeded(round) => {
                standing.all_succeeded = Some(round);
                // Others may leave the round afterwards.
                if let Some((said, since, of)) = standing.said.take()
                    && of == round
                {
                    self.answer(said, at);
                    self.seen(since, at, agent, Effect::AllSucceeded(round));
                }
            }
            Event::IsOver(round) => {
                if let Some((_, since, of)) = standing.said
                    && of == round
                {
                    self.seen(since, at, agent, Effect::IsOver(round));
                }
            }
            Event::MayBeLost => drop(self.call(at, agent, Effect::MayBeLost)),
        }
        self.agents.insert(agent, standing);
    }

    fn call(&mut self, called: u64, agent: Agent, effect: Effect) -> usize {
        self.operations.push(Operation {
            call: Call { agent, effect },
            called,
            answered: None,
        });
        self.operations.len() - 1
    }

    fn answer(&mut self, operation: usize, at: u64) {
        self.operations[operation].answered = Some((at, ()));
    }

    fn seen(&mut self, since: u64, at: u64, agent: Agent, effect: Effect) {
        let operation = self.call(since, agent, effect);
        self.answer(operation, at);
    }
}
