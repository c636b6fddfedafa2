//! Agent of a machine, its fence and its workers.

use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_rendezvous_proto::coordinator::WORKERS_END_WITHIN;
use rdzv_rendezvous_proto::coordinator::wire::Program;
use rdzv_rendezvous_proto::fence::{self, Fence};
use rdzv_rendezvous_proto::native_client::{self as agent, NativeClient, RoundChange};
use rdzv_rendezvous_proto::{FencePolicy, NodeDesc, Settings};

use super::{Event, MACHINES, MS, SIGNALS_TAKE, World};
use crate::scheduler::nanos;
use crate::{Result, broken};

/// Returns the endpoint of the agent's end of a connection.
pub(super) fn peer_address(id: ConnId) -> String {
    format!("10.0.1.1:{}", id.0)
}

impl World {
    pub(super) fn begin(&mut self, it: usize) {
        let Some(coordinator) = self.coordinator_for(it) else {
            self.time.after(100 * MS, Event::Begin(it));
            return;
        };
        let settings = Settings {
            last_call_timeout: Duration::from_secs(1),
            join_timeout: Duration::from_secs(3600),
            node_timeout: self.plan.node_timeout,
            fence: FencePolicy::Auto,
            ..Settings::new(2, 3)
        };
        let node = NodeDesc::new(format!("n{it}"), 1 + self.machines[it].life as i64);
        let life = self.machines[it].life;
        let instance = life * MACHINES as u64 + it as u64 + 1;
        let client = NativeClient::new(self.now(it), instance, "run", node, settings)
            .running(Some(Program::new("train.py", b"", true)))
            .willing()
            .with_rules(self.plan.rules);
        let id = self.new_link(it, coordinator, true);
        let machine = &mut self.machines[it];
        let client = client.from(Some(peer_address(id)));
        (machine.client, machine.connection) = (Some(client), Some(id));
        self.time.at(self.time.now, Event::Join(it, life));
    }

    pub(super) fn coordinator_for(&mut self, it: usize) -> Option<usize> {
        let coordinates = |index: &usize| {
            let machine = &self.machines[*index];
            let answers = machine.stall_end <= self.time.now;
            answers && machine.voter.coordinates() && self.is_reachable(it, *index)
        };
        let found: Vec<usize> = (0..MACHINES).filter(coordinates).collect();
        (!found.is_empty()).then(|| found[self.time.random.usize(0..found.len())])
    }

    pub(super) fn dial(&mut self, it: usize) -> Result {
        match self.coordinator_for(it) {
            Some(coordinator) => {
                let id = self.new_link(it, coordinator, true);
                self.machines[it].connection = Some(id);
                self.tell_agent(it, agent::Input::Connected(Some(&peer_address(id))))
            }
            None => {
                let life = self.machines[it].life;
                self.time.after(300 * MS, Event::NotFound(it, life));
                Ok(())
            }
        }
    }

    pub(super) fn tell_agent(&mut self, it: usize, input: agent::Input<'_>) -> Result {
        self.time.log(format!("n{it}"), || format!("◄ {input:?}"));
        let now = self.now(it);
        let Some(client) = &mut self.machines[it].client else {
            return Ok(());
        };
        client.handle(now, input);
        let mut outputs = Vec::new();
        while let Some(output) = client.poll_output() {
            outputs.push(output);
        }
        for output in outputs {
            self.time.log(format!("n{it}"), || format!("► {output:?}"));
            self.of_agent(it, output)?;
        }
        self.schedule(it);
        Ok(())
    }

    pub(super) fn of_agent(&mut self, it: usize, output: agent::Output) -> Result {
        let (now, life) = (self.time.now, self.machines[it].life);
        match output {
            agent::Output::Dial => {
                let late = self.time.random.u64(MS..20 * MS);
                self.time.at(now + late, Event::Dial(it, life));
            }
            agent::Output::HangUp => {
                if let Some(id) = self.machines[it].connection.take() {
                    self.end_stream(id);
                }
            }
            agent::Output::Send(bytes) => {
                if let Some(id) = self.machines[it].connection {
                    self.send(id, bytes);
                }
            }
            agent::Output::Lead { round } => {
                let (addr, port) = ("n", 1);
                return self.tell_agent(it, agent::Input::Publish { round, addr, port });
            }
            agent::Output::Joined(joined) => {
                let machine = &mut self.machines[it];
                machine.starts += 1;
                let is_closed = machine.fence.is_closed();
                machine.workers = Some((joined.round, machine.starts, is_closed));
                let round = joined.round;
                self.time
                    .log(format!("n{it}"), || format!("works in round {round}"));
                return self.check();
            }
            agent::Output::NotJoined(_) => self.time.at(now + 100 * MS, Event::Join(it, life)),
            agent::Output::Lease { round, ends } => {
                let input = match ends {
                    Some(end) => fence::Input::Lease { round, end },
                    None => fence::Input::Off,
                };
                return self.tell_fence(it, input);
            }
            agent::Output::Changed(RoundChange::Membership { round, .. })
                if self.machines[it]
                    .workers
                    .is_some_and(|(of, ..)| of == round) =>
            {
                self.stop_workers(it);
                return self.tell_fence(it, fence::Input::Over);
            }
            agent::Output::Changed(RoundChange::Membership { .. }) => {}
            agent::Output::Changed(change) => {
                return broken(format!("n{it} receives {change:?}"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Stops the workers within a random time; then the agent joins again.
    pub(super) fn stop_workers(&mut self, it: usize) {
        if let Some((_, start, _)) = self.machines[it].workers {
            let after = if self.time.chance(50) {
                0
            } else {
                self.time.random.u64(0..6000) * MS
            };
            self.time.after(after, Event::Ended(it, start));
        }
    }

    pub(super) fn workers_are_gone(&mut self, it: usize) -> Result {
        self.machines[it].workers = None;
        self.tell_fence(it, fence::Input::Gone)?;
        let life = self.machines[it].life;
        self.time.at(self.time.now, Event::Join(it, life));
        Ok(())
    }

    /// Kills the agent and its keeper; the kernel closes the connection.
    ///
    /// The kernel also kills the workers.
    pub(super) fn kill(&mut self, it: usize, again: u64) {
        let late = self.time.random.u64(0..nanos(WORKERS_END_WITHIN));
        let machine = &mut self.machines[it];
        if machine.client.take().is_none() {
            return;
        }
        machine.life += 1;
        machine.fence = Fence::new(Duration::from_secs(60), self.plan.rules);
        if let Some((_, start, _)) = machine.workers {
            self.report.ended += 1;
            self.time.after(late, Event::Killed(it, start));
        }
        if let Some(id) = machine.connection.take() {
            self.end_stream(id);
        }
        let again = again.max(nanos(WORKERS_END_WITHIN));
        self.time.after(again, Event::Begin(it));
    }

    pub(super) fn tell_fence(&mut self, it: usize, input: fence::Input) -> Result {
        let now = self.now(it);
        self.machines[it].fence.handle(now, input);
        while let Some(signal) = self.machines[it].fence.poll_output() {
            let late = self.time.random.u64(0..nanos(SIGNALS_TAKE));
            let machine = &mut self.machines[it];
            let Some((_, start, _)) = machine.workers else {
                continue;
            };
            // Signals arrive in order.
            machine.signalled = machine.signalled.max(self.time.now + late);
            let at = machine.signalled;
            self.time.at(at, Event::Signal(it, start, signal));
        }
        self.schedule(it);
        Ok(())
    }

    pub(super) fn signalled(&mut self, it: usize, start: u64, signal: fence::Output) -> Result {
        self.time.log(format!("n{it}"), || format!("{signal:?}"));
        let Some((_, of, stopped)) = &mut self.machines[it].workers else {
            return Ok(());
        };
        if *of != start {
            return Ok(());
        }
        match signal {
            fence::Output::Stop => {
                *stopped = true;
                self.report.stops += 1;
            }
            fence::Output::Continue(_) => {
                *stopped = false;
                self.report.continued += 1;
                return self.check();
            }
            fence::Output::Kill | fence::Output::GiveUp(_) => {
                self.report.kills += 1;
                return self.workers_are_gone(it);
            }
        }
        Ok(())
    }
}
