//! Requests to the agent: stop, suspend the job, prove that it is alive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::sleep_until;

use rustix::process::Signal;

use crate::clock::or_forever;
use crate::health::{Liveness, Watched};
use crate::keeper::KeeperWatch;
use crate::signal_copies::{SignalCopies, Taken, Way};
use crate::signals::{JobControl, JobRequest, Signals, carried_by};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Stop, because of a signal or a [`StopHandle`].
    Stop(i32),
    /// Notify the workers that the scheduler will take the node away.
    Notice(Taken),
    /// Stop quickly, because the keeper or the guard exited.
    KeeperLost,
    /// Pass a signal on to all workers.
    PassOn(i32),
    /// Suspend the workers or continue them (job control).
    Job(JobRequest),
}

/// All sources of requests.
pub(crate) struct Requests {
    signals: Signals,
    for_workers: Signals,
    /// Signals that the guard sends in place of those for the workers.
    by_guard: Signals,
    /// Signals of the guard that are nevertheless requests to stop.
    stops: Vec<i32>,
    copies: SignalCopies,
    notice: Option<i32>,
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
            by_guard: Signals::default(),
            stops: Vec::new(),
            copies: SignalCopies::default(),
            notice: None,
            keeper,
            job_control,
            stop: stop.attach(),
            pings,
            _watched: watched,
        }
    }

    /// Adds the signals that are meant for the workers.
    ///
    /// The guard sends SIGUSR1 and SIGUSR2 in another form (`by_guard`). `notice` is the signal
    /// with which the scheduler announces that it will take the node away.
    pub(crate) fn with_signals_for_workers(
        self,
        for_workers: Signals,
        by_guard: Signals,
        stops: Vec<i32>,
        notice: Option<i32>,
    ) -> Self {
        Self {
            for_workers,
            by_guard,
            stops,
            notice,
            ..self
        }
    }

    /// Records that another node received the notice of preemption.
    /// A [`Request::Notice`] follows once it is known whether the scheduler sends the signal to
    /// this node too. A signal that is not this node's notice has no effect.
    pub(crate) fn notice_elsewhere(&mut self, signal: i32) {
        if Some(signal) == self.notice {
            self.copies.note(signal, Way::OtherNode, Instant::now());
        }
    }

    /// Returns `true` if there is a keeper, as far as is known.
    pub(crate) fn has_keeper(&self) -> bool {
        self.keeper.is_there()
    }

    /// Waits for the next request.
    /// Cancel-safe: the caller may drop the future.
    pub(crate) async fn next(&mut self) -> Request {
        loop {
            tokio::select! {
                biased;
                () = self.keeper.lost() => return Request::KeeperLost,
                signal = self.signals.next() => return Request::Stop(signal),
                signal = self.for_workers.next() => {
                    // Only the last size of a terminal matters.
                    if signal == Signal::WINCH.as_raw() {
                        return Request::PassOn(signal);
                    }
                    self.copies.note(signal, Way::Itself, Instant::now());
                }
                carrier = self.by_guard.next() => {
                    if let Some(signal) = carried_by(carrier) {
                        if self.stops.contains(&signal) {
                            return Request::Stop(signal);
                        }
                        self.copies.note(signal, Way::Guard, Instant::now());
                    }
                }
                () = or_forever(self.copies.due().map(|at| sleep_until(at.into()))) => {
                    match self.copies.take(Instant::now()) {
                        Some(taken) if Some(taken.signal) == self.notice => {
                            return Request::Notice(taken);
                        }
                        Some(taken) if !taken.workers_have_it => {
                            return Request::PassOn(taken.signal);
                        }
                        Some(_) | None => {}
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

    /// Waits for a signal to stop or the loss of the keeper; cancel-safe.
    pub(crate) async fn stop(&mut self) -> Request {
        loop {
            tokio::select! {
                signal = self.signals.next() => return Request::Stop(signal),
                carrier = self.by_guard.next() => {
                    let signal = carried_by(carrier);
                    if let Some(signal) = signal.filter(|signal| self.stops.contains(signal)) {
                        return Request::Stop(signal);
                    }
                }
                () = self.keeper.lost() => return Request::KeeperLost,
            }
        }
    }
}

/// Stops an agent from another thread.
///
/// A request has the effect of a signal to the process. The first request gives the workers the
/// whole shutdown timeout, the second one a quarter of it, and any further one no time. A request
/// with the same signal within 200 ms after another one does not count.
#[derive(Debug, Clone, Default)]
pub struct StopHandle(Arc<Mutex<StopRequests>>);

#[derive(Debug, Default)]
struct StopRequests {
    /// Requests from before the run.
    early: Vec<i32>,
    agent: Option<UnboundedSender<i32>>,
}

impl StopHandle {
    /// Stops the workers with this signal.
    ///
    /// The run then ends with [`RunError::Signalled`], unless another event has already decided how
    /// the run ends, such as a final failure of workers. Before a run, the call ends the next run
    /// at its beginning. After a run it has no effect.
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

    /// Sends all requests to the returned receiver from now on.
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
