//! Waits for workers to exit, and reports the exits in their true order.
//!
//! All workers' process descriptors are in one epoll instance. The kernel appends a descriptor to
//! its ready list when the process exits. Even exits that one wake-up finds are therefore in their
//! true order, and the choice of the root cause relies on that order.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rdzv_agent_proto::group::Exit;
use rdzv_core::rank::LocalRank;
use rdzv_event::{Event, EventFlags, Poller, is_readable};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use tokio::io::unix::AsyncFd;

const BATCH: usize = 64;

/// Registers a descriptor with the runtime in which the caller runs.
#[expect(
    deprecated,
    reason = "the successor is `unsafe` because a type may lie about its descriptor; an `OwnedFd` \
              and a `Poller` do not"
)]
pub(crate) fn awaitable<T: AsRawFd>(descriptor: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(descriptor)
}

/// Waits until a poller has events, and returns up to `most` of them.
/// Cancel-safe: the caller may drop the future without losing an event.
async fn events(poller: &mut AsyncFd<Poller>, most: usize) -> io::Result<Vec<Event>> {
    loop {
        let mut guard = poller.readable().await?;
        let mut events = Vec::with_capacity(most);
        guard.get_inner().wait(&mut events, Some(Duration::ZERO))?;
        if !events.is_empty() {
            return Ok(events);
        }
        guard.clear_ready();
    }
}

#[derive(Debug)]
pub(crate) struct Exits {
    poller: AsyncFd<Poller>,
    running: BTreeMap<LocalRank, OwnedFd>,
}

impl Exits {
    /// Creates an empty set; must be called inside the runtime.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            poller: awaitable(Poller::new()?)?,
            running: BTreeMap::new(),
        })
    }

    pub(crate) fn watch(&mut self, local_rank: LocalRank, pidfd: OwnedFd) -> io::Result<()> {
        let poller = self.poller.get_ref();
        // One event per change. A debugger can hold a process that has exited: its descriptor is
        // readable, but the agent can reap the process only after the debugger releases it. That
        // release is the next change.
        let changes = EventFlags::IN | EventFlags::ET;
        poller.add(&pidfd, u64::from(local_rank.0), changes)?;
        self.running.insert(local_rank, pidfd);
        Ok(())
    }

    /// Stops watching a worker that does not exit.
    pub(crate) fn forget(&mut self, local_rank: LocalRank) {
        self.running.remove(&local_rank);
    }

    /// Returns `true` until the agent has reaped or abandoned a worker.
    /// Until then, no other process can get its process id.
    pub(crate) fn is_watched(&self, local_rank: LocalRank) -> bool {
        self.running.contains_key(&local_rank)
    }

    /// Returns `true` while a worker is running.
    /// The exit of a worker counts before [`Exits::next`] reports it.
    pub(crate) fn is_running(&self, local_rank: LocalRank) -> bool {
        let pidfd = self.running.get(&local_rank);
        pidfd.is_some_and(|pidfd| !is_readable(pidfd))
    }

    /// Waits until workers exit, reaps them, and returns the exits in order.
    ///
    /// Cancel-safe: the caller may drop the future without losing an exit.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<(LocalRank, Exit)>> {
        loop {
            let events = events(&mut self.poller, BATCH).await?;
            let mut ends = Vec::with_capacity(events.len());
            for event in events {
                let Event { data, .. } = event;
                let local_rank = LocalRank(u32::try_from(data.u64()).unwrap_or(u32::MAX));
                if let Some(exit) = self.collect(local_rank)? {
                    ends.push((local_rank, exit));
                }
            }
            if !ends.is_empty() {
                return Ok(ends);
            }
        }
    }

    fn collect(&mut self, local_rank: LocalRank) -> io::Result<Option<Exit>> {
        // The descriptor is removed even if reaping fails. Otherwise epoll would report it without
        // a limit.
        let Some(pidfd) = self.running.remove(&local_rank) else {
            return Ok(None);
        };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let Some(status) = waitid(WaitId::PidFd(pidfd.as_fd()), options)? else {
            self.running.insert(local_rank, pidfd);
            return Ok(None);
        };
        Ok(Some(
            match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, Some(signal)) => Exit::Signal(signal),
                (None, None) => unreachable!("waitid returns ended processes only"),
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
    use tokio::runtime::{Builder, LocalOptions};

    use super::*;

    #[test]
    fn ends_that_are_noticed_together_come_in_their_order() {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .unwrap();
        runtime.block_on(async {
            let mut exits = Exits::new().unwrap();
            let mut pids = Vec::new();
            for rank in 0..5 {
                #[expect(clippy::zombie_processes, reason = "`Exits` collects it")]
                let child = Command::new("sleep").arg("1000").spawn().unwrap();
                let pid = Pid::from_child(&child);
                let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
                exits.watch(LocalRank(rank), pidfd).unwrap();
                pids.push(pid);
            }
            let order = [3, 1, 4, 0, 2];
            for rank in order {
                assert!(exits.is_running(LocalRank(rank)));
                kill_process(pids[rank as usize], Signal::KILL).unwrap();
                let ended = &exits.running[&LocalRank(rank)];
                poll(&mut [PollFd::new(ended, PollFlags::IN)], None).unwrap();
                assert!(!exits.is_running(LocalRank(rank)));
            }
            let seen = exits.next().await.unwrap();
            let expected = order.map(|rank| (LocalRank(rank), Exit::Signal(9)));
            assert_eq!(seen, expected);
            assert!((0..5).all(|rank| !exits.is_watched(LocalRank(rank))));
        });
    }
}
