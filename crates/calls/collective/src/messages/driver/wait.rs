//! Wait of the driver for events, until this rank leaves the group.
//!
//! The driver waits for commands, for data, for space, and for peers that connect or leave.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::{Driver, Peer};
use crate::error::CollectiveError;
use crate::polling::{Polling, Source};

/// Number of turns; the last one polls everything instead of spinning.
///
/// Every turn checks for commands, but only a poll detects interruption, and peers that connect or
/// leave.
const AWAKE_TURNS: u32 = 8;

impl Driver {
    /// Waits for an event, and handles every event except commands.
    pub(super) fn wait(&mut self) {
        self.awake_turns += 1;
        if self.awake_turns < AWAKE_TURNS && !self.has_ended && self.wait_awake() {
            return;
        }
        self.awake_turns = 0;
        let sources = match self.poll() {
            Ok(sources) => sources,
            Err(error) => {
                let error = CollectiveError::system("wait for messages of other ranks", error);
                return self.fail(Vec::new(), Some(error));
            }
        };
        if let Some(wait) = self.asleep_since.take() {
            self.spin.learn(wait.elapsed());
        }
        for source in sources {
            if self.has_ended {
                return;
            }
            match source {
                Source::Commands => {}
                Source::Interrupt => self.end_interrupted(),
                Source::Acceptor => self.accept_peers(),
                Source::Outbound(rank) => {
                    self.send_to(rank);
                    self.read_answers(rank);
                }
                Source::Space(rank) => {
                    if let Some(leaving) = &mut self.peer(rank).leaving {
                        leaving.outbound.awake();
                    }
                    self.send_to(rank);
                }
                Source::Inbound(rank) => {
                    if let Some(arriving) = &mut self.peer(rank).arriving {
                        arriving.send_answers();
                    }
                    self.read_from(rank);
                }
                Source::Data(rank) => {
                    if let Some(arriving) = &mut self.peer(rank).arriving {
                        arriving.inbound.awake();
                    }
                    self.read_from(rank);
                }
            }
        }
    }

    /// Spins for a moment until rings have values or space for values.
    ///
    /// Returns `true` if values have moved. Without spinning, a wake-up for each half of a ring
    /// would take longer than the transfer.
    fn wait_awake(&mut self) -> bool {
        let matched = self.transfers.values().filter(|one| one.is_matched);
        let due: BTreeSet<u32> = matched.filter_map(|one| one.peer).collect();
        let peers = self.peers.iter_mut();
        let mut moving: Vec<(&u32, &mut Peer)> =
            peers.filter(|(rank, _)| due.contains(*rank)).collect();
        if !moving.iter().any(|(_, peer)| peer.has_ring()) {
            return false;
        }
        let wait = self.spin.begin();
        let mut happened = Vec::new();
        let ready = wait.spin(|| {
            for (rank, peer) in &mut moving {
                let (space, data) = (peer.has_space(), peer.has_data());
                if space || data {
                    happened.push((**rank, space, data));
                }
            }
            !happened.is_empty()
        });
        if ready {
            self.spin.learn(wait.elapsed());
        } else {
            self.asleep_since = Some(wait);
        }
        for (rank, space, data) in happened {
            if space && !self.has_ended {
                self.send_to(rank);
            }
            if data && !self.has_ended {
                self.read_from(rank);
            }
        }
        ready
    }

    fn poll(&mut self) -> std::io::Result<Vec<Source>> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let mut left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Ranks whose work can continue immediately, whatever is polled.
        let mut ready = Vec::new();
        for (&rank, peer) in self.peers.iter_mut().filter(|_| !self.has_ended) {
            if let Some(leaving) = &mut peer.leaving
                && (!leaving.outbound.prepare_to_sleep() || leaving.can_go_on())
            {
                ready.push(Source::Space(rank));
            }
            if let Some(arriving) = &mut peer.arriving
                && arriving.is_read()
                && !arriving.inbound.prepare_to_sleep()
            {
                ready.push(Source::Data(rank));
            }
        }
        if !ready.is_empty() {
            left = Some(Duration::ZERO);
        }
        let mut polling = Polling::default();
        polling.add(Source::Commands, self.commands.as_fd(), PollFlags::IN);
        if !self.has_ended {
            let interrupt = self.interrupt.as_fd();
            polling.add(Source::Interrupt, interrupt, PollFlags::IN);
            polling.add_acceptor(&self.acceptor);
        }
        for (&rank, peer) in self.peers.iter().filter(|_| !self.has_ended) {
            if let Some(leaving) = &peer.leaving {
                polling.add_outbound(rank, &leaving.outbound);
            }
            if let Some(arriving) = &peer.arriving {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, arriving.is_read());
                flags.set(PollFlags::OUT, arriving.has_answers());
                let socket = arriving.inbound.socket.as_fd();
                polling.add(Source::Inbound(rank), socket, flags);
                if let Some(doorbell) = arriving.inbound.doorbell().filter(|_| arriving.is_read()) {
                    polling.add(Source::Data(rank), doorbell, PollFlags::IN);
                }
            }
        }
        let mut sources = polling.wait(left)?;
        sources.extend(ready);
        Ok(sources)
    }
}
