//! Events of the agents of a run, made into its operations.

use std::collections::BTreeMap;

use super::Operation;
use super::run::{Agent, Assignment, Call, Effect, Run};

/// An event of an agent, in its own order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It wants to be in the next round.
    Joins,
    /// It is in one.
    Joined(Assignment),
    /// It is not taken in, because the run is over; or for another reason.
    Refused {
        /// The run is over.
        closed: bool,
    },
    /// It leaves.
    Leaves,
    /// That is known.
    Left,
    /// It ends the run.
    Closes,
    /// The run is over, by its own word or by that of another one.
    Closed,
    /// It asks how the run stands.
    Asks,
    /// The answer: whether it is over.
    Status(bool),
    /// Its workers have succeeded in this round.
    Succeeds(u64),
    /// Those of all have.
    AllSucceeded(u64),
    /// The round does not hold any more.
    IsOver(u64),
    /// It has ended, or something has happened to it by which it may rightly be taken for lost.
    MayBeLost,
}

/// Makes operations of what happens to agents.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// The operations so far.
    pub operations: Vec<Operation<Run>>,
    agents: BTreeMap<Agent, Standing>,
}

/// The operations that an agent waits for, by the places of its operations, and since when.
#[derive(Debug, Clone, Default)]
struct Standing {
    joining: Option<(usize, u64)>,
    leaving: Option<usize>,
    closing: Option<usize>,
    asked: Option<u64>,
    said: Option<(usize, u64, u64)>,
    /// The round of which it was told that all have succeeded.
    all_succeeded: Option<u64>,
    /// When it last knew that the run was open.
    open_at: u64,
}

impl Record {
    /// Something has happened to an agent.
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
                // An agent that says it again has said it already: the answer to the first time is
                // the answer to all of them. One that was told may hear that others have left, also
                // if it says it once more.
                let has_said = standing.said.is_some_and(|(_, _, of)| of == round);
                if !has_said && standing.all_succeeded != Some(round) {
                    let said = self.call(at, agent, Effect::Succeed(round));
                    standing.said = Some((said, at, round));
                }
            }
            Event::AllSucceeded(round) => {
                standing.all_succeeded = Some(round);
                // Others may leave the round after that.
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

    fn answer(&mut self, place: usize, at: u64) {
        self.operations[place].answered = Some((at, ()));
    }

    fn seen(&mut self, since: u64, at: u64, agent: Agent, effect: Effect) {
        let place = self.call(since, agent, effect);
        self.answer(place, at);
    }
}
