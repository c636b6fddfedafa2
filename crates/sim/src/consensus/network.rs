//! Connections between processes.

use super::process::{Packet, Peer, Process};
use super::world::{Event, World};
use crate::Result;
use rdzv_consensus::Input;

impl World {
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        // Messages of an ended process are on their way from its machine.
        let slot = |it: usize| self.processes[it].slot;
        self.cuts.contains_key(&(slot(from), slot(to)))
    }

    /// Returns a random latency between a client and a process.
    pub(super) fn client_latency(&mut self) -> u64 {
        let (least, most) = self.plan.latency;
        self.time.random.u64(least..=most)
    }

    /// Returns the number of the connection of one process to another.
    fn connection(&self, it: usize, other: usize) -> Option<u64> {
        self.processes[it].peers.get(&other)?.connection
    }

    fn latency(&mut self, from: usize, to: usize) -> u64 {
        let late = self.client_latency();
        let now = self.time.now;
        let is_slow = |it: usize| self.processes[it].slow_end > now;
        late * if is_slow(from) || is_slow(to) { 50 } else { 1 }
    }

    pub(super) fn send(&mut self, from: usize, to: usize, packet: Packet) {
        let Some(number) = self.connection(from, to) else {
            return;
        };
        let late = self.latency(from, to);
        let last = self.arrivals.entry((from, to, number)).or_default();
        let mut at = (self.time.now + late).max(*last);
        *last = at;
        let is_lossy = !self.is_calm && self.time.random.u64(0..1000) < self.plan.lossy;
        if is_lossy {
            match self.time.random.u32(0..3) {
                0 => return,
                1 => {
                    let again = at + self.time.random.u64(0..200_000_000);
                    let event = Event::Arrive(from, to, number, packet.clone());
                    self.time.at(again, event);
                }
                _ => at += self.time.random.u64(0..200_000_000),
            }
        }
        self.time.at(at, Event::Arrive(from, to, number, packet));
    }

    pub(super) fn arrive(&mut self, from: usize, to: usize, number: u64, packet: Packet) -> Result {
        if self.is_cut(from, to) {
            self.held.push((from, to, number, packet));
            return Ok(());
        }
        let now = self.time.now;
        let Some(peer) = self.processes[to].peers.get_mut(&from) else {
            return Ok(());
        };
        if peer.connection != Some(number) {
            // This end has closed, so the other end is notified.
            let late = self.plan.latency.1;
            self.time.after(late, Event::Down(from, to, number, false));
            return Ok(());
        }
        peer.heard = now;
        let id = peer.id;
        match packet {
            Packet::Frame(frame) => {
                let (opcode, payload) = (frame[0], &frame[9..]);
                // An append, a snapshot or a heartbeat.
                let leads = opcode == rdzv_consensus::wire::opcode::MESSAGE
                    && [0, 4, 5].contains(&payload[0]);
                let input = Input::Received {
                    from: id,
                    opcode,
                    payload,
                };
                self.handle(to, input)?;
                let process = &mut self.processes[to];
                if let Some(consensus) = &process.consensus
                    && leads
                    && consensus.role().leader == Some(id)
                {
                    process.heard = Some(now);
                }
                Ok(())
            }
            Packet::Invite(voter_index) => self.invited(to, voter_index),
            Packet::Ping(ends) => {
                peer.ended = ends.then_some(0);
                Ok(())
            }
        }
    }

    /// Connects all processes that can be connected and are not.
    pub(super) fn connect(&mut self) {
        let numbers = self.running();
        for (at, &one) in numbers.iter().enumerate() {
            for &two in &numbers[at + 1..] {
                let has = |it: usize, other: usize| self.connection(it, other).is_some();
                let pending = self.connecting.contains(&(one, two));
                let cut = self.is_cut(one, two) || self.is_cut(two, one);
                if pending || cut || has(one, two) || has(two, one) {
                    continue;
                }
                self.connecting.insert((one, two));
                let number = self.time.unique();
                for (it, other) in [(one, two), (two, one)] {
                    let late = self.latency(it, other);
                    self.time.after(2 * late, Event::Up(it, other, number));
                }
            }
        }
    }

    pub(super) fn up(&mut self, it: usize, other: usize, number: u64) -> Result {
        self.connecting.remove(&(it.min(other), it.max(other)));
        let now = self.time.now;
        let Process { runs, id, slot, .. } = self.processes[other];
        if !runs {
            return Ok(());
        }
        let peers = &mut self.processes[it].peers;
        let peer = peers.entry(other).or_insert(Peer {
            id,
            slot,
            connection: None,
            since: now,
            heard: now,
            ended: None,
        });
        peer.connection = Some(number);
        peer.heard = now;
        self.handle(it, Input::PeerUp(id))
    }

    pub(super) fn down(&mut self, it: usize, other: usize, number: u64, ended: bool) -> Result {
        let now = self.time.now;
        let Some(peer) = self.processes[it].peers.get_mut(&other) else {
            return Ok(());
        };
        if ended {
            peer.ended = peer.ended.or(Some(now));
        }
        if peer.connection != Some(number) {
            return Ok(());
        }
        peer.connection = None;
        let id = peer.id;
        self.handle(it, Input::PeerDown(id))
    }

    /// Closes a connection; each end notices it at a random time.
    pub(super) fn reset(&mut self, one: usize, two: usize, within: u64) {
        self.held
            .retain(|(from, to, ..)| (*from, *to) != (one, two) && (*from, *to) != (two, one));
        for (it, other) in [(one, two), (two, one)] {
            if let Some(number) = self.connection(it, other) {
                let late = self.time.random.u64(0..=within);
                self.time.after(late, Event::Down(it, other, number, false));
            }
        }
    }

    /// Notifies the peers of an ended process.
    pub(super) fn hang_up(&mut self, gone: usize, slot: usize, with_machine: bool) {
        for it in self.running() {
            let Some(number) = self.connection(it, gone) else {
                continue;
            };
            let cut = self.cuts.contains_key(&(slot, self.processes[it].slot));
            let silent = with_machine || cut;
            let late = if silent {
                self.time.random.u64(1_000_000_000..4_000_000_000)
            } else {
                self.latency(it, it)
            };
            // The notice arrives after everything that the process sent before.
            let last = self.arrivals.get(&(gone, it, number)).copied().unwrap_or(0);
            let at = (self.time.now + late).max(last);
            self.time.at(at, Event::Down(it, gone, number, !silent));
        }
        self.held
            .retain(|(from, to, ..)| *from != gone && *to != gone);
        self.arrivals
            .retain(|(from, to, _), _| *from != gone && *to != gone);
    }

    /// Cuts directions between slots for this time.
    ///
    /// A connection that is cut for a long time is reset.
    pub(super) fn cut(&mut self, directions: Vec<(usize, usize)>, time: std::time::Duration) {
        let time = crate::scheduler::nanos(time);
        for direction in &directions {
            *self.cuts.entry(*direction).or_default() += 1;
            let patient = self.time.random.u64(50_000_000..3_000_000_000);
            if time > patient {
                let (one, two) = *direction;
                if let (Some(one), Some(two)) = (self.slots[one], self.slots[two]) {
                    self.time.after(patient, Event::Reset(one, two));
                }
            }
        }
        self.time.after(time, Event::Heal(directions));
    }

    pub(super) fn heal(&mut self, directions: &[(usize, usize)]) {
        for direction in directions {
            if let Some(count) = self.cuts.get_mut(direction) {
                *count -= 1;
            }
        }
        self.cuts.retain(|_, count| *count > 0);
        self.release();
    }

    /// Delivers packets that were held back, where the connection is no longer cut.
    pub(super) fn release(&mut self) {
        let now = self.time.now;
        for (from, to, number, packet) in std::mem::take(&mut self.held) {
            self.time.at(now, Event::Arrive(from, to, number, packet));
        }
    }
}
