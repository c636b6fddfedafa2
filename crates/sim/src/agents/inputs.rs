//! Inputs of agents, and the actions that agents request.

use std::time::Duration;

use rdzv_core::env::{MASTER_ADDR, MASTER_PORT};
use rdzv_rendezvous_proto::coordinator::wire::AgentRefusal;
use rdzv_rendezvous_proto::native_client::{self, FormedRound};
use rdzv_rendezvous_proto::{NodeDesc, participant};

use super::agent::{Doing, Input, Output};
use super::plan::{Act, Medium};
use super::world::{Ask, Event, Piece, Within, World};
use crate::history::record;
use crate::history::run::Assignment;
use crate::scheduler::nanos;
use crate::{Result, broken};

/// Time after which an agent notices that an endpoint does not answer.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which an agent that has not joined tries again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl World {
    /// Passes an input to an agent, and applies its outputs.
    pub(super) fn tell(&mut self, agent: usize, input: Input<'_>) -> Result {
        self.note(agent, || format!("◄ {input:?}"));
        let now = self.time.clocks(self.agents[agent].skew);
        self.write_down(agent, &input);
        let outputs = self.agents[agent].handle(now, input);
        if self.agents[agent].is_stock {
            self.note(agent, || self.agents[agent].reason().to_owned());
        }
        for output in outputs {
            self.note(agent, || format!("► {output:?}"));
            match output {
                Output::Native(output) => self.apply_native(agent, output)?,
                Output::Stock(output) => self.apply_stock(agent, output)?,
            }
        }
        self.schedule(agent);
        Ok(())
    }

    fn apply_native(&mut self, agent: usize, output: native_client::Output) -> Result {
        use native_client::{NativeFailure, Output, RoundChange};
        match output {
            Output::Send(bytes) => {
                if let Some(link) = self.agents[agent].connection {
                    self.send(link, true, Piece::Bytes(bytes));
                }
            }
            Output::Dial => {
                let takes = if self.agents[agent].cut_end > self.time.now {
                    nanos(DIAL_TIMEOUT)
                } else {
                    self.latency()
                };
                self.later(agent, takes, Within::Dialed);
            }
            Output::HangUp => {
                if let Some(id) = self.agents[agent].connection.take() {
                    if let Some(link) = self.links.get_mut(&id) {
                        link.at_agent = false;
                    }
                    self.send(id, true, Piece::End);
                }
            }
            Output::Lead { round } => {
                let addr = self.agents[agent].me.addr.clone();
                let port = (self.agents[agent].me.pid * 100 + 1) as u16;
                let publish = native_client::Input::Publish {
                    round,
                    addr: &addr,
                    port,
                };
                return self.tell(agent, Input::Native(publish));
            }
            Output::Joined(joined) => return self.joined(agent, &joined),
            Output::NotJoined(NativeFailure::Refused(refusal)) => {
                let closed = matches!(refusal, AgentRefusal::Closed | AgentRefusal::NotNeeded);
                self.write(agent, record::Event::Refused { closed });
                self.agents[agent].end();
            }
            Output::NotJoined(failure) => {
                self.write(agent, record::Event::Refused { closed: false });
                self.not_joined(
                    agent,
                    match failure {
                        NativeFailure::Unreachable { .. } | NativeFailure::SilentLeader { .. } => {
                            Within::StartAgain
                        }
                        _ => Within::JoinAgain,
                    },
                );
            }
            Output::Changed(RoundChange::Membership { round, reason }) => {
                self.write(agent, record::Event::IsOver(round));
                if self.agents[agent].has_succeeded(round) {
                    match after_success(&reason) {
                        AfterSuccess::Joins => self.stop_workers(agent),
                        AfterSuccess::Ends => self.finish(agent, false),
                        AfterSuccess::Waits => {}
                    }
                    return Ok(());
                }
                self.stop_workers(agent);
                if reason.contains("is lost") && !self.plan.faulty {
                    return broken(format!("INV-R5: no agent is lost, but {reason}"));
                }
            }
            Output::Changed(RoundChange::Closed) | Output::Closed => {
                self.write(agent, record::Event::Closed);
                self.agents[agent].end();
            }
            Output::Changed(RoundChange::Lost { .. }) => self.not_joined(agent, Within::StartAgain),
            Output::AllSucceeded(round) => {
                self.write(agent, record::Event::AllSucceeded(round));
                if self.agents[agent].has_succeeded(round) {
                    self.finish(agent, true);
                }
            }
            Output::NotClosed(_) => {
                self.agents[agent].end();
                return self.tell(agent, Input::Leave);
            }
            _ => {}
        }
        Ok(())
    }

    fn joined(&mut self, agent: usize, joined: &FormedRound) -> Result {
        let it = &mut self.agents[agent];
        it.doing = Doing::Working(joined.round);
        it.knows = true;
        it.is_recoverable = joined.is_recoverable;
        // The history does not contain every participant of a round with torchrun agents.
        let is_mixed = self.plan.torchrun.contains(&true);
        let assignment = Assignment {
            round: joined.round,
            rank: joined.rank,
            size: if is_mixed { 0 } else { joined.world_size },
        };
        self.write(agent, record::Event::Joined(assignment));
        self.count_joined();
        self.ledger.joined(&self.agents[agent].me, joined)?;
        if self.plan.medium != Medium::Restartable || self.plan.has_gap() {
            return Ok(());
        }
        let working = self.agents.iter().filter_map(|agent| match agent.doing {
            Doing::Working(round) if !agent.has_succeeded(round) => Some((&agent.me, round)),
            _ => None,
        });
        self.ledger.running(working)
    }

    fn apply_stock(&mut self, agent: usize, output: participant::Output) -> Result {
        use participant::{Output, ParticipantChange, ParticipantFailure};
        if !self.plan.faulty && self.host.is_none() {
            self.trouble(agent, &output)?;
        }
        match output {
            Output::Read => {
                self.report.reads += 1;
                self.agents[agent].writing = false;
                self.ask(agent, Ask::Read);
            }
            Output::Write(state) => {
                self.report.tried += 1;
                self.agents[agent].writing = true;
                self.ask(agent, Ask::Write(state, self.agents[agent].version));
            }
            Output::Joined(formed) => {
                self.agents[agent].doing = Doing::Working(formed.round);
                self.count_joined();
                let (it, late) = (&self.agents[agent], self.host.is_some());
                self.ledger.read(&it.me, &formed, it.state(), late)?;
                if late && formed.rank == 0 {
                    self.lead_as_stock(agent, formed.round);
                }
            }
            Output::Closed => {
                self.write(agent, record::Event::Closed);
                self.agents[agent].end();
            }
            Output::Changed(ParticipantChange::Closed)
            | Output::Failed(ParticipantFailure::Closed | ParticipantFailure::NotNeeded)
            | Output::Left => self.agents[agent].end(),
            Output::Changed(_) => self.stop_workers(agent),
            Output::Failed(_) => self.not_joined(agent, Within::JoinAgain),
        }
        Ok(())
    }

    fn count_joined(&mut self) {
        self.report.joined += 1;
        self.report.last_joined = Duration::from_nanos(self.time.now);
    }

    /// Stops the workers of an agent; the agent joins again afterwards.
    fn stop_workers(&mut self, agent: usize) {
        let it = &mut self.agents[agent];
        if matches!(it.doing, Doing::Working(_)) {
            it.doing = Doing::Stopping;
            let takes = nanos(it.stop_takes);
            self.later(agent, takes, Within::JoinAgain);
        }
    }

    /// Handles an agent that has not joined, or has lost the coordinator.
    ///
    /// `again` is the way in which the agent tries again.
    fn not_joined(&mut self, agent: usize, again: Within) {
        let it = &mut self.agents[agent];
        // An agent that cannot close the run in time does not join again.
        if !it.wanted {
            return it.end();
        }
        it.doing = Doing::Stopping;
        self.later(agent, nanos(AGAIN_AFTER), again);
    }

    /// Ends an agent whose workers have succeeded, and that need not wait.
    ///
    /// The agent closes the run if the workers of all agents have succeeded. Otherwise its round is
    /// over.
    fn finish(&mut self, agent: usize, closes: bool) {
        self.agents[agent].finishes = true;
        // The last lines of its workers' output come first.
        let late = self.time.random.u64(0..3_000_000_000);
        self.later(agent, late, Within::Finishes(closes));
    }

    /// Fails if a live agent is lost, or late although no agent has left.
    fn trouble(&self, agent: usize, output: &participant::Output) -> Result {
        use participant::{Output, ParticipantChange, ParticipantFailure};
        let me = &self.agents[agent].me;
        let there = |node: &&NodeDesc| {
            let mut agents = self.agents.iter();
            agents.any(|agent| agent.wanted && agent.me == **node)
        };
        let leaves = |act: &Act| matches!(act, Act::Leave | Act::Crash | Act::Close);
        match output {
            Output::Changed(ParticipantChange::NodesLost(nodes)) => {
                match nodes.iter().find(there) {
                    Some(node) => broken(format!("INV-R5: {me} received that {node} is lost")),
                    None => Ok(()),
                }
            }
            Output::Changed(ParticipantChange::Dropped) => {
                broken(format!("INV-R5: {me} was dropped"))
            }
            Output::Failed(ParticipantFailure::JoinTimeout { .. })
                if self.agents.iter().all(|agent| agent.wanted)
                    && !self.plan.acts.iter().any(|(_, _, act)| leaves(act)) =>
            {
                broken(format!("INV-R5: {me} was not in time"))
            }
            _ => Ok(()),
        }
    }

    /// Publishes the endpoint of the workers, as a torchrun agent does.
    ///
    /// A process publishes it when it leads for the first time, and its role in each round that it
    /// leads. Without a network, it does so when it has a network again.
    fn lead_as_stock(&mut self, agent: usize, round: u64) {
        let process = self.agents[agent].process;
        let arrives = (self.time.now + self.latency()).max(self.agents[agent].cut_end);
        let mut pairs = Vec::new();
        if self.leaders.insert(agent, process) != Some(process) {
            let port = (self.agents[agent].me.pid * 100 + 2).to_string();
            pairs.push((MASTER_ADDR, self.agents[agent].me.addr.clone()));
            pairs.push((MASTER_PORT, port));
        }
        pairs.push(("torchelastic/role_info/0", "{}".to_owned()));
        for (index, (key, value)) in (0..).zip(pairs) {
            let key = format!("/torch.rendezvous.run.{round}/{key}").into_bytes();
            let value = value.into_bytes();
            self.time.at(arrives + index, Event::Set(key, value));
        }
    }
}

/// Reaction of an agent whose workers have succeeded to the end of its round.
enum AfterSuccess {
    Joins,
    Ends,
    /// The coordinator will send another reason.
    Waits,
}

fn after_success(reason: &str) -> AfterSuccess {
    if reason.ends_with(" joins again") || reason.ends_with(" to join") {
        AfterSuccess::Joins
    } else if reason.ends_with(" have succeeded") || reason.starts_with("the other") {
        AfterSuccess::Ends
    } else {
        AfterSuccess::Waits
    }
}
