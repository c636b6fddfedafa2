//! Workers that are threads of this process, with a complete supervisor.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdzv_agent::api::{
    MonitorResult, ProcessFailure, RunResult, StartRequest, SupervisorError, WorkerGroup,
    WorkerLocation, WorkerState, WorkerSupervisor,
};
use rdzv_agent::outcome::{Cause, Exit};
use rdzv_core::rank::{LocalRank, Rank};
use rdzv_core::time::Wall;
use serde_json::Value;

/// Request to the workers to end: a flag and callbacks.
/// A thread cannot be killed. A worker that waits for something must therefore register a callback
/// that ends the wait.
#[derive(Default)]
pub(crate) struct Stop {
    wanted: AtomicBool,
    calls: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

impl Stop {
    /// Returns `true` if the workers must end.
    #[allow(dead_code, reason = "not every user of this file needs it")]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Calls `call` when the workers must end; immediately if they already must.
    pub(crate) fn on_stop(&self, call: impl Fn() + Send + 'static) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if self.wanted.load(Ordering::SeqCst) {
            call();
        } else {
            calls.push(Box::new(call));
        }
    }

    fn want(&self) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.store(true, Ordering::SeqCst);
        for call in calls.drain(..) {
            call();
        }
    }
}

/// Work of one worker.
/// It receives its ranks and checks its flag from time to time. It returns a value or the reason of
/// its failure.
pub(crate) type Work = Arc<dyn Fn(&StartRequest, &Stop) -> Result<Value, String> + Send + Sync>;

/// Worker that has ended.
type Ended = (LocalRank, Rank, Result<Value, String>);

/// Supervisor that starts a thread for each worker.
pub(crate) struct ThreadWorkers {
    work: Work,
    stop: Arc<Stop>,
    threads: BTreeMap<LocalRank, JoinHandle<()>>,
    ended: Option<Receiver<Ended>>,
    values: BTreeMap<Rank, Value>,
}

impl ThreadWorkers {
    pub(crate) fn new(
        work: impl Fn(&StartRequest, &Stop) -> Result<Value, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            work: Arc::new(work),
            stop: Arc::default(),
            threads: BTreeMap::new(),
            ended: None,
            values: BTreeMap::new(),
        }
    }

    fn start(&mut self, request: &StartRequest, ended: Sender<Ended>) -> std::io::Result<()> {
        let (work, stop, request) = (
            Arc::clone(&self.work),
            Arc::clone(&self.stop),
            request.clone(),
        );
        let ranks = request.ranks;
        let thread = thread::Builder::new().spawn(move || {
            let result = work(&request, &stop);
            // There is no receiver any more once the group is being stopped.
            let _ = ended.send((ranks.local_rank, ranks.rank, result));
        })?;
        self.threads.insert(ranks.local_rank, thread);
        Ok(())
    }
}

impl WorkerSupervisor for ThreadWorkers {
    fn start_workers(
        &mut self,
        group: &WorkerGroup,
        workers: &[StartRequest],
    ) -> Result<BTreeMap<LocalRank, WorkerLocation>, SupervisorError> {
        (self.stop, self.values) = (Arc::default(), BTreeMap::new());
        let (sender, ended) = channel();
        self.ended = Some(ended);
        let mut ids = BTreeMap::new();
        for request in workers {
            let local_rank = request.ranks.local_rank;
            self.start(request, sender.clone())
                .map_err(|error| SupervisorError(format!("start thread {local_rank}: {error}")))?;
            let id = format!("thread {}/{local_rank}", group.spec.role());
            ids.insert(local_rank, WorkerLocation::Remote(id));
        }
        Ok(ids)
    }

    fn monitor_workers(
        &mut self,
        _group: &WorkerGroup,
        within: Duration,
    ) -> Result<MonitorResult, SupervisorError> {
        let Some(ended) = &self.ended else {
            return Ok(RunResult::of_state(WorkerState::Unknown));
        };
        match ended.recv_timeout(within) {
            Ok((local_rank, rank, result)) => {
                // The worker has sent its result, so its thread is about to end.
                let panicked = self
                    .threads
                    .remove(&local_rank)
                    .is_some_and(|thread| thread.join().is_err());
                match result {
                    Ok(value) if !panicked => {
                        self.values.insert(rank, value);
                    }
                    result => {
                        let text = result.err().unwrap_or_else(|| "panicked".to_owned());
                        let mut failure =
                            ProcessFailure::new(rank, local_rank, Exit::Code(1), now());
                        failure.cause = Cause::exception(&text);
                        return Ok(RunResult::failed(vec![failure]));
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            // All threads have ended, and one of them sent no result: it panicked.
            Err(RecvTimeoutError::Disconnected) if !self.threads.is_empty() => {
                return Ok(RunResult::of_state(WorkerState::Unknown));
            }
            Err(RecvTimeoutError::Disconnected) => {}
        }
        if self.threads.is_empty() {
            return Ok(RunResult::succeeded(std::mem::take(&mut self.values)));
        }
        Ok(RunResult::of_state(WorkerState::Healthy))
    }

    fn stop_workers(
        &mut self,
        _group: &WorkerGroup,
        signal: i32,
        shutdown_timeout: Duration,
    ) -> Result<(), SupervisorError> {
        self.shutdown(signal, shutdown_timeout);
        Ok(())
    }

    /// A thread cannot be killed: this can only request the end and wait for it.
    fn shutdown(&mut self, _signal: i32, _shutdown_timeout: Duration) {
        self.stop.want();
        self.ended = None;
        for (_, thread) in std::mem::take(&mut self.threads) {
            // If the thread panicked, the failure is known already.
            let _ = thread.join();
        }
    }
}

fn now() -> Wall {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Wall::from_unix_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
