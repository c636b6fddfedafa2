//! What agents are told, and what they want done then.

use std::time::Duration;

use rdzv_core::env::{MASTER_ADDR, MASTER_PORT};
use rdzv_rendezvous_proto::native_client;

use super::agent::{Action, Input};
use super::world::{Ask, Event, World};
use crate::Violation;
use crate::scheduler::nanos;

/// How long it takes to notice that nobody answers.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

impl World {
    /// Tells an agent something, and applies what it wants done.
    pub(super) fn tell(&mut self, agent: usize, input: Input<'_>) -> Result<(), Violation> {
        self.note(agent, || format!("◄ {input:?}"));
        let actions = self.agents[agent].handle(self.time.clocks(0), input);
        for action in actions {
            self.note(agent, || format!("► {action:?}"));
            self.apply(agent, action)?;
        }
        self.schedule(agent);
        Ok(())
    }

    fn apply(&mut self, agent: usize, action: Action) -> Result<(), Violation> {
        let process = self.agents[agent].process;
        let late = self.latency();
        // A torchrun agent without a network asks again until it has one.
        let arrives = (self.time.now + late).max(self.agents[agent].cut_until);
        match action {
            Action::Send(bytes) => {
                if let Some(link) = self.agents[agent].connection {
                    self.send(link, true, Some(bytes));
                }
            }
            Action::Dial => {
                let takes = match self.agents[agent].cut_until > self.time.now {
                    true => nanos(DIAL_TIMEOUT),
                    false => late,
                };
                self.time
                    .at(self.time.now + takes, Event::Dialed(agent, process));
            }
            Action::HangUp => {
                if let Some(id) = self.agents[agent].connection.take() {
                    if let Some(link) = self.links.get_mut(&id) {
                        link.at_agent = false;
                    }
                    self.end_link(id, true, false);
                }
            }
            Action::Lead(round) => {
                let addr = self.agents[agent].me.addr.clone();
                let port = (self.agents[agent].me.pid * 100 + 1) as u16;
                let publish = native_client::Input::Publish {
                    round,
                    addr: &addr,
                    port,
                };
                return self.tell(agent, Input::Native(publish));
            }
            Action::Read => {
                self.time
                    .at(arrives, Event::Asked(agent, process, Ask::Read));
            }
            Action::Write(state) => {
                let expected = self.agents[agent].seen.clone();
                let ask = Ask::Write { state, expected };
                self.time.at(arrives, Event::Asked(agent, process, ask));
            }
            Action::JoinAgain(after) => {
                self.time.at(
                    self.time.now + nanos(after),
                    Event::JoinAgain(agent, process),
                );
            }
            Action::StartAgain(after) => {
                self.time.at(
                    self.time.now + nanos(after),
                    Event::StartAgain(agent, process),
                );
            }
            Action::Joined(joined) => {
                self.report.joined += 1;
                self.report.last_joined = Duration::from_nanos(self.time.now);
                self.ledger.joined(&self.agents[agent].me, &joined)?;
                if self.agents[agent].is_stock() && joined.rank == 0 {
                    self.lead_as_stock(agent, joined.round, arrives);
                }
            }
            Action::Lost(reason) => {
                if !self.plan.faulty {
                    return Err(Violation(format!("INV-R5: nobody is lost, but {reason}")));
                }
            }
        }
        Ok(())
    }

    /// A torchrun agent says where workers meet when it leads for the first time, and then its role.
    fn lead_as_stock(&mut self, agent: usize, round: u64, arrives: u64) {
        let process = self.agents[agent].process;
        let mut pairs = Vec::new();
        if self.leaders.insert(agent, process) != Some(process) {
            let port = (self.agents[agent].me.pid * 100 + 2).to_string();
            pairs.push((MASTER_ADDR, self.agents[agent].me.addr.clone()));
            pairs.push((MASTER_PORT, port));
        }
        pairs.push(("torchelastic/role_info/0", "{}".to_owned()));
        for (place, (key, value)) in (0..).zip(pairs) {
            let key = format!("/torch.rendezvous.run.{round}/{key}").into_bytes();
            let value = value.into_bytes();
            let ask = Ask::Set { key, value };
            self.time
                .at(arrives + place, Event::Asked(agent, process, ask));
        }
    }
}
