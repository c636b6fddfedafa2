//! Applies the acts of the plan to agents.
//!
//! Agents start, end, pause, and have wrong clocks.

use std::time::Duration;

use rdzv_rendezvous_proto::{native_client, participant};

use super::agent::{Doing, Input, peer_address};
use super::plan::{Act, Medium};
use super::world::{Event, Piece, Within, World};
use crate::Result;
use crate::history::record;
use crate::scheduler::nanos;

/// Length of a cut above which the store reports an agent as dead.
///
/// This applies to a store that notices dead agents.
const LONG_CUT: Duration = Duration::from_secs(10);

impl World {
    pub(super) fn act(&mut self, agent: usize, act: Act) -> Result {
        self.note(agent, || format!("{act:?}"));
        self.write_fault(agent, act);
        let end = |time: Duration| self.time.now + nanos(time);
        let running = self.agents[agent].doing != Doing::Nothing;
        match act {
            // The agent may have left, or may know that the run is over. The keeper restarts a
            // killed agent.
            Act::Start if !running && !self.agents[agent].wanted => {
                self.crash(agent, false);
                self.agents[agent].wanted = true;
                return self.start(agent);
            }
            Act::Restart if self.agents[agent].has_workers() => {
                self.agents[agent].doing = Doing::Joining;
                return self.tell(agent, Input::Join);
            }
            Act::Leave | Act::Close if running => {
                if self.agents[agent].stall_end > self.time.now {
                    let end = self.agents[agent].stall_end;
                    self.time.at(end, Event::Act(agent, act));
                    return Ok(());
                }
                return self.end(agent, act == Act::Close);
            }
            Act::Crash => {
                self.crash(agent, false);
                if self.plan.notices_dead && running {
                    self.notice_dead(agent);
                }
            }
            Act::Vanish => self.crash(agent, true),
            Act::Stall(time) => self.agents[agent].stall_end = end(time),
            Act::Cut(time) => {
                self.agents[agent].cut_end = end(time);
                if let Some(link) = self.agents[agent].connection
                    && let Some(link) = self.links.get_mut(&link)
                {
                    link.cut = true;
                }
                // The store's report need not be true.
                if self.plan.notices_dead && running && time > LONG_CUT {
                    self.notice_dead(agent);
                }
            }
            Act::Reset => {
                if let Some(link) = self.agents[agent].connection {
                    self.break_link(link);
                }
            }
            Act::ClockJump(seconds) => self.agents[agent].skew += (seconds * 1e6) as i64,
            Act::HostStalls(time) => self.host_stall_end = end(time),
            Act::Killed if running && agent == 0 && self.plan.hosted => self.kill_host(false),
            Act::Killed if running => self.kill_agent(agent, None),
            Act::Killed => {}
            Act::NoteLost => self.lose_note()?,
            Act::Moved => {
                self.moves += 1;
                self.lose_note()?;
            }
            Act::Recover => {
                self.recovers = true;
                // Without a record, spares may fill a round before an agent of the last round has
                // reported.
                if self.plan.has_spares() {
                    self.kill_host(false);
                } else {
                    self.lose_note()?;
                }
            }
            Act::HostDies(0) => self.kill_host(false),
            Act::HostDies(after) => self.host_dies_after = Some(after),
            Act::Start | Act::Restart | Act::Leave | Act::Close => {}
        }
        Ok(())
    }

    /// Kills an agent; its keeper starts a replacement.
    ///
    /// `again` is the time of the start; without it, the time is random.
    pub(super) fn kill_agent(&mut self, agent: usize, again: Option<u64>) {
        let mut predecessors = std::mem::take(&mut self.agents[agent].predecessors);
        predecessors.push(self.agents[agent].instance);
        self.crash(agent, false);
        self.agents[agent].predecessors = predecessors;
        self.agents[agent].wanted = true;
        let late = self.time.random.u64(5_000_000..600_000_000);
        let late = again.map_or(late, |at| at - self.time.now);
        self.later(agent, late, Within::KeptStarts);
    }

    pub(super) fn start(&mut self, agent: usize) -> Result {
        if self.agents[agent].cut_end > self.time.now {
            let late = self.agents[agent].cut_end - self.time.now;
            self.later(agent, late, Within::StartAgain);
            return Ok(());
        }
        let seed = self.time.random.u64(..);
        let now = self.time.clocks(self.agents[agent].skew);
        let from = peer_address(self.next_link);
        self.agents[agent].start(now, &self.plan, seed, from);
        if !self.agents[agent].is_stock {
            self.connect(agent);
        }
        self.tell(agent, Input::Join)
    }

    /// Kills the coordinator and loses its record.
    ///
    /// The agents that were notified of the success have left, so the success may be forgotten.
    fn lose_note(&mut self) -> Result {
        if self.ledger.succeeded {
            self.ledger.is_forgotten = true;
            self.end_history()?;
        }
        self.kill_host(true);
        Ok(())
    }

    /// Makes an agent leave, or close the run.
    pub(super) fn end(&mut self, agent: usize, closes: bool) -> Result {
        self.agents[agent].doing = Doing::Nothing;
        self.agents[agent].wanted = false;
        let input = if closes { Input::Close } else { Input::Leave };
        self.tell(agent, input)
    }

    /// Lets the workers of an agent succeed; the agent then waits for the others.
    pub(super) fn succeed(&mut self, agent: usize) -> Result {
        let it = &self.agents[agent];
        let Doing::Working(round) = it.doing else {
            return Ok(());
        };
        if it.is_stock || !it.is_recoverable || it.finishes {
            return Ok(());
        }
        self.agents[agent].succeeded = Some(round);
        let succeeded = native_client::Input::Succeeded(round);
        self.tell(agent, Input::Native(succeeded))
    }

    /// Fails an agent's workers, because other workers of its round have ended.
    pub(super) fn fail_workers(&mut self, agent: usize, round: u64) -> Result {
        let it = &self.agents[agent];
        if it.doing != Doing::Working(round) || it.finishes {
            return Ok(());
        }
        self.agents[agent].doing = Doing::Joining;
        self.tell(agent, Input::Join)
    }

    /// Ends the process of an agent; `silently` if its machine ends with it.
    pub(super) fn crash(&mut self, agent: usize, silently: bool) {
        if let Doing::Working(round) = self.agents[agent].doing
            && self.plan.medium == Medium::Restartable
        {
            // A coordinator that recovers may have to wait for agents that know how the round
            // ended.
            for other in 0..self.agents.len() {
                let late = self.time.random.u64(0..20_000_000_000);
                self.later(other, late, Within::WorkersFail(round));
            }
        }
        self.write(agent, record::Event::MayBeLost);
        let instance = self.time.random.u64(1..);
        self.agents[agent].stop(instance);
        self.agents[agent].wanted = false;
        if let Some(link) = self.agents[agent].connection.take() {
            match self.links.get_mut(&link) {
                Some(link) if silently => link.cut = true,
                _ => self.send(link, true, Piece::End),
            }
        }
    }

    /// Lets the store report to all other agents that an agent is dead.
    fn notice_dead(&mut self, agent: usize) {
        let dead = self.agents[agent].me.clone();
        for other in (0..self.agents.len()).filter(|other| *other != agent) {
            let late = self.time.random.u64(0..3_000_000_000);
            let input = participant::Input::Gone(vec![dead.clone()]);
            self.later(other, late, Within::Notice(input));
        }
    }
}
