//! Requests to the agent from outside: to stop, to suspend the job, to say that it is alive.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use rustix::process::Signal;

use crate::health::{Liveness, Watched};
use crate::keeper::KeeperWatch;
use crate::signals::{JobControl, JobRequest, Signals};

/// Signals for the workers that come within this time are one.
const SAME_SIGNAL: Duration = Duration::from_millis(200);

/// What the agent is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// To stop, by a signal or a [`StopHandle`].
    Stop(i32),
    /// To stop at once: the keeper is gone.
    KeeperLost,
    /// To pass a signal on to all workers.
    PassOn(i32),
    /// Job control: to suspend the workers, or to continue them.
    Job(JobRequest),
}

/// All sources of requests.
pub(crate) struct Requests {
    signals: Signals,
    for_workers: Signals,
    passed_on: PassedOn,
    keeper: KeeperWatch,
    job_control: JobControl,
    stop: UnboundedReceiver<i32>,
    pings: UnboundedReceiver<std::sync::mpsc::Sender<()>>,
    _watched: Watched,
}

impl Requests {
    pub(crate) fn new(
        signals: Signals,
        keeper: KeeperWatch,
        job_control: JobControl,
        stop: &StopHandle,
        liveness: &Liveness,
    ) -> Self {
        let (pinger, pings) = unbounded_channel();
        let watched = liveness.watch(
            "agent loop",
            Arc::new(move |alive| {
                let _ = pinger.send(alive);
            }),
        );
        Self {
            signals,
            for_workers: Signals::default(),
            passed_on: PassedOn::default(),
            keeper,
            job_control,
            stop: stop.attach(),
            pings,
            _watched: watched,
        }
    }

    /// The same, and these signals are for the workers.
    pub(crate) fn with_signals_for_workers(self, for_workers: Signals) -> Self {
        Self {
            for_workers,
            ..self
        }
    }

    /// Whether there is a keeper, as far as is known.
    pub(crate) fn has_keeper(&self) -> bool {
        self.keeper.is_there()
    }

    /// Waits for the next request. May be dropped while waiting.
    pub(crate) async fn next(&mut self) -> Request {
        loop {
            tokio::select! {
                biased;
                () = self.keeper.lost() => return Request::KeeperLost,
                signal = self.signals.next() => return Request::Stop(signal),
                signal = self.for_workers.next() => {
                    if self.passed_on.is_new(signal, Instant::now()) {
                        return Request::PassOn(signal);
                    }
                }
                request = self.job_control.next() => return Request::Job(request),
                Some(alive) = self.pings.recv() => {
                    let _ = alive.send(());
                }
                Some(signal) = self.stop.recv() => return Request::Stop(signal),
            }
        }
    }

    /// Waits for a signal to stop, or the loss of the keeper. May be dropped while waiting.
    pub(crate) async fn stop(&mut self) -> Request {
        tokio::select! {
            signal = self.signals.next() => Request::Stop(signal),
            () = self.keeper.lost() => Request::KeeperLost,
        }
    }
}

/// When signals were last passed on.
#[derive(Debug, Default)]
struct PassedOn(BTreeMap<i32, Instant>);

impl PassedOn {
    /// Whether this is not the same signal once more: some schedulers send it to every process of a
    /// job, and then keeper and guard pass it on besides.
    fn is_new(&mut self, signal: i32, now: Instant) -> bool {
        // Of the sizes of a terminal, the last one counts.
        if signal == Signal::WINCH.as_raw() {
            return true;
        }
        let before = self.0.insert(signal, now);
        before.is_none_or(|before| now.duration_since(before) > SAME_SIGNAL)
    }
}

/// Tells an agent to stop from another thread.
///
/// It means what a signal to the process means: the first request grants the workers the whole grace,
/// the second a quarter of it, any further one nothing.
#[derive(Debug, Clone, Default)]
pub struct StopHandle(Arc<Mutex<StopRequests>>);

#[derive(Debug, Default)]
struct StopRequests {
    /// Those from before the run.
    early: Vec<i32>,
    agent: Option<UnboundedSender<i32>>,
}

impl StopHandle {
    /// Stops the workers with this signal, and the run with [`RunError::Signalled`]. Before a run
    /// it ends the next one at its beginning, after a run nothing happens.
    ///
    /// [`RunError::Signalled`]: crate::api::RunError::Signalled
    pub fn stop(&self, signal: i32) {
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &requests.agent {
            // The agent may have ended; then there is nothing to stop.
            Some(agent) => drop(agent.send(signal)),
            None => requests.early.push(signal),
        }
    }

    /// Requests go to this receiver from here on.
    fn attach(&self) -> UnboundedReceiver<i32> {
        let (sender, receiver) = unbounded_channel();
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for signal in std::mem::take(&mut requests.early) {
            let _ = sender.send(signal);
        }
        requests.agent = Some(sender);
        receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_comes_by_several_ways_is_one() {
        let (mut passed_on, begin) = (PassedOn::default(), Instant::now());
        let mut is_new =
            |signal, millis| passed_on.is_new(signal, begin + Duration::from_millis(millis));
        // To the agent itself, through the guard, and through keeper and guard.
        assert_eq!([0, 5, 10].map(|at| is_new(10, at)), [true, false, false]);
        assert!(is_new(12, 10));
        assert!(is_new(10, 1_000));
    }
}
