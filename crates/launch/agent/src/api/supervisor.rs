//! Interface for workers that the caller supervises: four methods.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::rank::LocalRank;

use super::{MonitorResult, StartRequest, SupervisorError, WorkerGroup, WorkerLocation};

/// Starts, watches and stops the workers of one node by means of the caller.
///
/// The workers may be threads, containers, or jobs on another machine. A
/// [`SimpleElasticAgent`](super::SimpleElasticAgent) always calls the methods from the thread of
/// its `run`, one at a time.
///
/// These methods identify workers by local rank, and results by global rank. The group has both.
pub trait WorkerSupervisor {
    /// Starts all workers of an attempt and returns the location of each.
    /// No worker is running at the time of the call.
    ///
    /// If this method fails, some workers may have started. The agent then calls
    /// [`WorkerSupervisor::stop_workers`].
    ///
    /// # Errors
    ///
    /// [`SupervisorError`] ends the run with its text.
    fn start_workers(
        &mut self,
        group: &WorkerGroup,
        workers: &[StartRequest],
    ) -> Result<BTreeMap<LocalRank, WorkerLocation>, SupervisorError>;

    /// Returns the state of the workers.
    ///
    /// * `Healthy`: some workers run and none has failed.
    /// * `Succeeded`: all workers have succeeded; the result has their values.
    /// * `Failed`: workers have failed; the result has the failures and names the first one.
    /// * `Unhealthy`: workers run without progress. The result has a failure for each such worker,
    ///   or none if all workers are meant.
    /// * `Unknown`: the state is not known, which ends the run. Any other state does the same.
    ///
    /// The method may wait for a change for at most `within`. If an implementation returns
    /// immediately, the agent polls without a pause. The agent handles rendezvous and signals
    /// between the calls.
    ///
    /// # Errors
    ///
    /// [`SupervisorError`] ends the run with its text.
    fn monitor_workers(
        &mut self,
        group: &WorkerGroup,
        within: Duration,
    ) -> Result<MonitorResult, SupervisorError>;

    /// Ends all running workers: sends `signal`, then SIGKILL after a timeout.
    /// The last argument is this shutdown timeout. No worker may be left when the method returns.
    /// Workers that have already exited, or never existed, are not an error.
    ///
    /// # Errors
    ///
    /// [`SupervisorError`] ends the run with its text.
    fn stop_workers(
        &mut self,
        group: &WorkerGroup,
        signal: i32,
        shutdown_timeout: Duration,
    ) -> Result<(), SupervisorError>;

    /// Ends all remaining workers; this is the last call of every run.
    /// This method does the same as [`WorkerSupervisor::stop_workers`], and releases everything
    /// else. The agent calls it after a failed run too.
    fn shutdown(&mut self, signal: i32, shutdown_timeout: Duration);
}
