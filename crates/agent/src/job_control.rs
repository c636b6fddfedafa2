//! Ctrl-Z and `fg`: the whole job stands still, and goes on.
//!
//! ```text
//!   SIGTSTP ─► keeper ── SIGTSTP ─► agent ── SIGSTOP ─► workers' process groups
//!                └─ stops itself      └─ does nothing but wait
//!   SIGCONT ─► keeper ── SIGCONT ─► agent ── SIGCONT ─► workers' process groups
//! ```
//!
//! * Workers get SIGSTOP, because the kernel ignores SIGTSTP in process groups like theirs, which no
//!   shell looks after.
//! * The agent's clock stands still meanwhile, so that no grace, no limit and no heartbeat that it
//!   waits for counts the time. Its threads go on: the store answers, and the heartbeats of the
//!   rendezvous are sent, so that the other nodes keep this one. (Their workers wait for these ones
//!   in collectives, whose own limits count on.) Without a keeper the agent stops itself, too: the
//!   other nodes then lose it as soon as their heartbeats say so.
//! * A signal that ends the run, or the loss of the keeper, ends the standstill.
//! * SIGSTOP cannot be handled. Whoever sends it to the keeper or to a worker stops that process only;
//!   nobody takes a stopped worker for one that has ended.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rdzv_agent_proto::group::GroupInput;
use rdzv_core::rank::LocalRank;
use rdzv_core::time::Mono;
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{self, SignalKind, signal};
use tracing::warn;

use crate::agent::Agent;
use crate::signals::is_ignored;
use crate::stop;

/// What job control asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To stand still.
    Stop,
    /// To go on.
    Continue,
}

/// SIGTSTP and SIGCONT, waited for.
#[derive(Debug)]
pub(crate) struct JobControl {
    /// None if SIGTSTP was being ignored, which stays so.
    stop: Option<unix::Signal>,
    go_on: unix::Signal,
}

impl JobControl {
    /// Handles both from here on. To be called inside the runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let stop = Signal::TSTP.as_raw();
        Ok(Self {
            stop: if is_ignored(stop) {
                None
            } else {
                Some(signal(SignalKind::from_raw(stop))?)
            },
            go_on: signal(SignalKind::from_raw(Signal::CONT.as_raw()))?,
        })
    }

    /// Waits for the next wish. May be dropped while waiting.
    ///
    /// If both have come, they are taken for a stop that is over: to stand still where nobody says
    /// any more that it should go on is worse than the contrary.
    pub(crate) async fn next(&mut self) -> Wish {
        poll_fn(|context| {
            let stop = match &mut self.stop {
                Some(stop) => stop.poll_recv(context).is_ready(),
                None => false,
            };
            if self.go_on.poll_recv(context).is_ready() {
                Poll::Ready(Wish::Continue)
            } else if stop {
                Poll::Ready(Wish::Stop)
            } else {
                Poll::Pending
            }
        })
        .await
    }
}

/// Stops this process until somebody sends it SIGCONT.
pub(crate) fn stop_this_process() {
    let _ = kill_process(getpid(), Signal::STOP);
}

impl Agent<'_> {
    pub(crate) fn job_control_wishes(&mut self, wish: Wish) {
        if wish == Wish::Continue || self.standing_still.is_some() {
            return;
        }
        warn!(
            "[{}] stopped; the workers stand still until SIGCONT",
            self.plan.role
        );
        self.standing_still = Some(self.clock.now().mono);
        self.tell_all(Signal::STOP);
        if !self.keeper.is_there() {
            stop_this_process();
        }
    }

    /// Waits until the job goes on, in whatever way.
    pub(crate) async fn stand_still(&mut self, since: Mono) -> Option<GroupInput> {
        let input = loop {
            tokio::select! {
                biased;
                () = self.keeper.lost() => break Some(GroupInput::KeeperLost),
                signal = self.signals.next() => break Some(self.signalled(signal)),
                wish = self.job_control.next() => if wish == Wish::Continue {
                    break None;
                },
                Some(alive) = self.pings.recv() => {
                    let _ = alive.send(());
                }
            }
        };
        self.standing_still = None;
        self.clock.was_stopped_since(since);
        warn!("[{}] continued", self.plan.role);
        self.tell_all(Signal::CONT);
        input
    }

    fn tell_all(&mut self, signal: Signal) {
        let workers: Vec<LocalRank> = self.workers.keys().copied().collect();
        for worker in workers {
            stop::tell(self, worker, signal);
        }
    }
}
