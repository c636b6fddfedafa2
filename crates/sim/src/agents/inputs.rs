//! What agents are told, and what they want done then.

use std::time::Duration;

use rdzv_core::env::{MASTER_ADDR, MASTER_PORT};
use rdzv_rendezvous_proto::{NodeDesc, native_client};

use super::agent::{Action, Doing, Input};
use super::plan::{Act, Place};
use super::world::{Ask, Event, Piece, Within, World};
use crate::scheduler::nanos;
use crate::{Violation, broken};

/// How long it takes to notice that nobody answers.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

impl World {
    /// Tells an agent something, and applies what it wants done.
    pub(super) fn tell(&mut self, agent: usize, input: Input<'_>) -> Result<(), Violation> {
        self.note(agent, || format!("◄ {input:?}"));
        let now = self.time.clocks(self.agents[agent].skew);
        self.write_down(agent, &input);
        let actions = self.agents[agent].handle(now, input);
        self.write_heard(agent);
        if self.agents[agent].is_stock() {
            self.note(agent, || self.agents[agent].reason().to_owned());
        }
        for action in actions {
            self.note(agent, || format!("► {action:?}"));
            self.apply(agent, action)?;
        }
        self.schedule(agent);
        Ok(())
    }

    fn apply(&mut self, agent: usize, action: Action) -> Result<(), Violation> {
        match action {
            Action::Send(bytes) => {
                if let Some(link) = self.agents[agent].connection {
                    self.send(link, true, Piece::Bytes(bytes));
                }
            }
            Action::Dial => {
                let takes = match self.agents[agent].cut_until > self.time.now {
                    true => nanos(DIAL_TIMEOUT),
                    false => self.latency(),
                };
                self.later(agent, takes, Within::Dialed);
            }
            Action::HangUp => {
                if let Some(id) = self.agents[agent].connection.take() {
                    if let Some(link) = self.links.get_mut(&id) {
                        link.at_agent = false;
                    }
                    self.end_link(id, true);
                }
            }
            Action::Leave => return self.tell(agent, Input::Leave),
            Action::Finish { closes } => {
                self.agents[agent].finishes = true;
                // The last lines of its workers' output come before.
                let late = self.time.random.u64(0..3_000_000_000);
                self.later(agent, late, Within::Finishes(closes));
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
            Action::Ask => {
                self.report.reads += 1;
                self.agents[agent].writing = false;
                self.ask(agent, Ask::Read);
            }
            Action::Write(state) => {
                self.report.tried += 1;
                self.agents[agent].writing = true;
                self.ask(agent, Ask::Write(state, self.agents[agent].version));
            }
            Action::JoinAgain(after) => {
                self.later(agent, nanos(after), Within::JoinAgain);
            }
            Action::StartAgain(after) => {
                self.later(agent, nanos(after), Within::StartAgain);
            }
            Action::Joined(joined) => {
                self.count_joined();
                self.ledger.joined(&self.agents[agent].me, &joined)?;
                if self.plan.place == Place::Restartable && !self.plan.has_gap() {
                    let working = self.agents.iter().filter_map(|agent| match agent.doing {
                        Doing::Working(round) if !agent.has_succeeded(round) => {
                            Some((&agent.me, round))
                        }
                        _ => None,
                    });
                    self.ledger.running(working)?;
                }
            }
            Action::Read(formed) => {
                self.count_joined();
                let (it, late) = (&self.agents[agent], self.host.is_some());
                self.ledger.read(&it.me, &formed, it.state(), late)?;
                if self.host.is_some() && formed.rank == 0 {
                    self.lead_as_stock(agent, formed.round);
                }
            }
            Action::Lost(reason) => {
                if !self.plan.faulty {
                    return broken(format!("INV-R5: nobody is lost, but {reason}"));
                }
            }
            Action::NodesLost(_) | Action::Dropped | Action::TimedOut => {
                if !self.plan.faulty && self.host.is_none() {
                    return self.trouble(agent, &action);
                }
            }
        }
        Ok(())
    }

    fn count_joined(&mut self) {
        self.report.joined += 1;
        self.report.last_joined = Duration::from_nanos(self.time.now);
    }

    /// Nobody is lost, or late, unless they leave.
    fn trouble(&self, agent: usize, action: &Action) -> Result<(), Violation> {
        let me = &self.agents[agent].me;
        let there = |node: &&NodeDesc| {
            let mut agents = self.agents.iter();
            agents.any(|agent| agent.wanted && agent.me == **node)
        };
        let leaves = |act: &Act| matches!(act, Act::Leave | Act::Crash | Act::Close);
        match action {
            Action::NodesLost(nodes) => match nodes.iter().find(there) {
                Some(node) => broken(format!("INV-R5: {me} was told that {node} is lost")),
                None => Ok(()),
            },
            Action::Dropped => broken(format!("INV-R5: {me} was dropped")),
            _ if self.agents.iter().any(|agent| !agent.wanted) => Ok(()),
            _ if self.plan.acts.iter().any(|(_, _, act)| leaves(act)) => Ok(()),
            _ => broken(format!("INV-R5: {me} was not in time")),
        }
    }

    /// A torchrun agent says where workers meet when it leads for the first time, and then its role.
    /// Without a network it says so when it has one again.
    fn lead_as_stock(&mut self, agent: usize, round: u64) {
        let process = self.agents[agent].process;
        let arrives = (self.time.now + self.latency()).max(self.agents[agent].cut_until);
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
            self.time.at(arrives + place, Event::Set(key, value));
        }
    }
}
