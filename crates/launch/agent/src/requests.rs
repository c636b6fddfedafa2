//! Requests to the agent from outside: to stop, to suspend the job, to say that it is alive.

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

/// What the agent is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// To stop, by a signal or a [`StopHandle`].
    Stop(i32),
    /// To tell the workers that the scheduler will take the node away.
    Notice(Taken),
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
    /// The signals that the guard sends in place of those for the workers.
    by_guard: Signals,
    /// Those of them that are requests to stop nevertheless.
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

    /// The same, and these signals are for the workers, in the form in which the guard sends them too. `notice` is
    /// the one that says that the scheduler will take the node away.
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

    /// Notes that the notice of preemption has come to another node; a [`Request::Notice`] follows, when it is known
    /// whether the scheduler sends the signal to this one as well.
    pub(crate) fn notice_elsewhere(&mut self, signal: i32) {
        if Some(signal) == self.notice {
            self.copies.note(signal, Way::OtherNode, Instant::now());
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
                    // Of the sizes of a terminal, the last one counts.
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

    /// Waits for a signal to stop, or the loss of the keeper. May be dropped while waiting.
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

/// Tells an agent to stop from another thread.
///
/// It means what a signal to the process means: the first request grants the workers the whole
/// grace, the second a quarter of it, any further one nothing.
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
