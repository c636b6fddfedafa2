//! The interface for workers that the caller supervises: four methods.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::rank::LocalRank;

use super::{MonitorResult, StartRequest, SupervisorError, WorkerGroup, WorkerId};

/// Starts, watches and stops the workers of one node in the caller's way.
/// The workers may be threads, containers, or jobs on another machine. A
/// [`SimpleElasticAgent`](super::SimpleElasticAgent) calls the methods always from the thread of
/// its `run`, and never two at the same time.
///
/// Workers are numbered by local rank here, and by global rank in results; the group has both.
pub trait WorkerSupervisor {
    /// Starts all workers of an attempt and returns the location of each.
    /// No worker is running when the agent calls it.
    ///
    /// If it fails, some may have been started: [`WorkerSupervisor::stop_workers`] follows.
    fn start_workers(
        &mut self,
        group: &WorkerGroup,
        workers: &[StartRequest],
    ) -> Result<BTreeMap<LocalRank, WorkerId>, SupervisorError>;

    /// Returns the state of the workers.
    ///
    /// * `Healthy`: some run and none has failed.
    /// * `Succeeded`: all have ended well, with what they returned.
    /// * `Failed`: with the failures in the order in which they happened.
    /// * `Unhealthy`: workers run but are of no use, with a failure for each such worker, or with
    ///   none if that is all of them.
    /// * `Unknown`: the state is not known, which ends the run.
    ///
    /// The method may wait for a change for at most `within`. An implementation that returns
    /// immediately makes the agent poll without a pause. The agent handles rendezvous and signals
    /// between the calls.
    fn monitor_workers(
        &mut self,
        group: &WorkerGroup,
        within: Duration,
    ) -> Result<MonitorResult, SupervisorError>;

    /// Ends all running workers: sends `signal`, and SIGKILL after `grace`.
    /// No worker is left when it returns. Workers that have already ended, or never existed, are no
    /// error.
    fn stop_workers(
        &mut self,
        group: &WorkerGroup,
        signal: i32,
        grace: Duration,
    ) -> Result<(), SupervisorError>;

    /// Ends whatever is left: the last call of every run, also of a failed run.
    /// It does the same as [`WorkerSupervisor::stop_workers`], and releases everything else.
    fn shutdown(&mut self, signal: i32, grace: Duration);
}
