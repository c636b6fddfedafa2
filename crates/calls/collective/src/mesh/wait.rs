//! Waits of a mesh: for data, for space, and for peers that connect or leave.

use std::os::fd::AsFd;
use std::time::Duration;

use rdzv_shm::spin::SpinWait;
use rustix::event::PollFlags;

use super::Mesh;
use crate::error::{CollectiveError, Result};
use crate::polling::{Polling, Source};

impl Mesh {
    /// Spins for a moment until a ring has data or space.
    ///
    /// This waits for data from the peer `from`, and for space for queued data.
    ///
    /// Returns `true` if a ring has data or space. Without rings, this returns `false` without
    /// spinning.
    pub(super) fn spin_for(&mut self, wait: SpinWait, from: Option<u32>) -> bool {
        let outbound = self.outbound.values_mut();
        let mut behind: Vec<_> = outbound.filter(|one| one.doorbell().is_some()).collect();
        let mut from = from.and_then(|peer| self.inbound.get_mut(&peer));
        if behind.is_empty() && from.as_ref().is_none_or(|from| from.doorbell().is_none()) {
            return false;
        }
        let happened = wait.spin(|| {
            let data = from.as_mut().is_some_and(|from| from.has_more());
            data || behind.iter_mut().any(|one| one.can_go_on())
        });
        if happened {
            for one in behind {
                one.send();
            }
        }
        happened
    }

    /// Waits for an event, and handles every event except data from `from`.
    pub(super) fn wait(
        &mut self,
        awaited: u32,
        from: Option<u32>,
        state: &'static str,
    ) -> Result<()> {
        let running = self.running();
        let left = running.timeout.saturating_sub(running.started.elapsed());
        if left.is_zero() {
            return Err(running.timed_out(self.named(awaited), state));
        }
        let slice = self.watch.as_ref().map_or(left, |watch| watch.slice(left));
        let mut arrivals = false;
        let happened = self.poll(from, slice)?;
        if let Some(watch) = &mut self.watch
            && watch.ends()
        {
            return Err(running.interrupted(self.member.rank));
        }
        for source in happened {
            match source {
                Source::Interrupt => return Err(running.interrupted(self.member.rank)),
                Source::Acceptor => arrivals = true,
                Source::Inbound(_) | Source::Commands => {}
                Source::Data(peer) => {
                    if let Some(inbound) = self.inbound.get_mut(&peer) {
                        inbound.awake();
                    }
                }
                Source::Space(peer) => {
                    if let Some(outbound) = self.outbound.get_mut(&peer) {
                        outbound.awake();
                        outbound.send();
                    }
                }
                Source::Outbound(peer) => {
                    self.read_reply(peer)
                        .map_err(|error| self.pass_on(error, awaited, state))?;
                    if let Some(outbound) = self.outbound.get_mut(&peer) {
                        outbound.send();
                    }
                }
            }
        }
        if arrivals {
            self.accept_peers()?;
        }
        Ok(())
    }

    fn poll(&mut self, from: Option<u32>, left: Duration) -> Result<Vec<Source>> {
        let mut left = left;
        for (&peer, outbound) in &mut self.outbound {
            if !outbound.prepare_to_sleep() {
                return Ok(vec![Source::Space(peer)]);
            }
        }
        if let Some(peer) = from
            && let Some(inbound) = self.inbound.get_mut(&peer)
            && !inbound.prepare_to_sleep()
        {
            // The data is already here. The other sources are still polled.
            left = Duration::ZERO;
        }
        let mut polling = Polling::default();
        let interrupt = self.interrupt.as_fd();
        polling.add(Source::Interrupt, interrupt, PollFlags::IN);
        polling.add_acceptor(&self.acceptor);
        for (&peer, outbound) in &self.outbound {
            polling.add_outbound(peer, outbound);
        }
        if let Some(peer) = from
            && let Some(inbound) = self.inbound.get(&peer)
        {
            let socket = inbound.socket.as_fd();
            polling.add(Source::Inbound(peer), socket, PollFlags::IN);
            if let Some(doorbell) = inbound.doorbell() {
                polling.add(Source::Data(peer), doorbell, PollFlags::IN);
            }
        }
        let failed = |error| CollectiveError::system("wait for the other ranks", error);
        polling.wait(Some(left)).map_err(failed)
    }
}
