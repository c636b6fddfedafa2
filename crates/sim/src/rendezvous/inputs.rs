//! What agents are told, and what they want done then; what is wrong if nothing goes wrong.

use std::time::Duration;

use rdzv_rendezvous_proto::NodeDesc;
use rdzv_rendezvous_proto::participant::Input;

use super::agent::{Actions, Ask, Doing};
use super::plan::Act;
use super::render::shown;
use super::world::{Event, World};
use crate::Violation;
use crate::scheduler::nanos;

impl World {
    pub(super) fn step(&mut self, number: usize, input: Input) -> Result<(), Violation> {
        let shown = if self.time.is_traced() {
            shown(&input)
        } else {
            String::new()
        };
        let now = self.time.clocks(self.agents[number].skew);
        let actions = self.agents[number].handle(now, input);
        self.tell(number, || {
            format!("{shown}: {}", self.agents[number].reason())
        });
        self.grant(number, actions)
    }

    pub(super) fn grant(&mut self, number: usize, actions: Actions) -> Result<(), Violation> {
        let process = self.agents[number].process;
        if let Some(ask) = actions.ask {
            self.agents[number].writing = matches!(ask, Ask::Write(..));
            self.send(number, ask);
        }
        if let Some(formed) = actions.joined {
            self.tell(number, || format!("joined {formed:?}"));
            self.report.joined += 1;
            self.report.last_joined = Duration::from_nanos(self.time.now);
            let agent = &self.agents[number];
            self.ledger.joined(&agent.me, &formed, agent.state())?;
        }
        if actions.timed_out {
            self.tell(number, || "was not in time".into());
            let up = self
                .agents
                .iter()
                .filter(|agent| agent.doing != Doing::Nothing)
                .count();
            if !self.plan.faulty && up == self.plan.agents && !self.left() {
                return Err(Violation("INV-R5: an agent was not in time".into()));
            }
        }
        if !self.plan.faulty {
            let me = &self.agents[number].me;
            if actions.dropped {
                return Err(Violation(format!("INV-R5: {me} was dropped")));
            }
            let alive = |node: &NodeDesc| {
                self.agents
                    .iter()
                    .any(|agent| agent.me == *node && agent.doing != Doing::Nothing)
            };
            if let Some(node) = actions.lost.iter().find(|node| alive(node)) {
                let leaves = self
                    .agents
                    .iter()
                    .any(|agent| agent.me == *node && agent.doing == Doing::Ending);
                if !leaves {
                    return Err(Violation(format!(
                        "INV-R5: {me} was told that {node} is lost"
                    )));
                }
            }
        }
        if !actions.lost.is_empty() || actions.dropped {
            self.tell(number, || {
                format!("lost {:?} dropped {}", actions.lost, actions.dropped)
            });
        }
        if let Some(after) = actions.join_again {
            let at = self.time.now + nanos(after);
            self.at(at, number, Event::JoinAgain(process));
        }
        let agent = &self.agents[number];
        // An agent whose run was closed has nothing more to do.
        if agent.doing == Doing::Ending && agent.state().is_some_and(|state| state.closed) {
            self.agents[number].crash();
        } else if let Some(due) = agent.deadline() {
            self.at(due, number, Event::Wake(process));
        }
        Ok(())
    }

    /// Whether anybody is to leave, so that too few may remain.
    fn left(&self) -> bool {
        self.plan
            .acts
            .iter()
            .any(|(_, _, act)| matches!(act, Act::Leave | Act::Crash | Act::Close))
    }
}
