//! What somebody else's workers need: four methods.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::rank::LocalRank;

use super::{MonitorResult, StartRequest, SupervisorError, WorkerGroup, WorkerId};

/// Starts, watches and stops the workers of one node in a way of its own: threads, containers, jobs
/// on another machine. A [`SimpleElasticAgent`](super::SimpleElasticAgent) calls it, always from the
/// thread of its `run`, and never two methods at once.
///
/// Workers are numbered by local rank here and named by global rank in results, as the group says.
pub trait WorkerSupervisor {
    /// Starts all workers of an attempt and says where each runs. None is running when it is called.
    ///
    /// If it fails, some may have been started: [`WorkerSupervisor::stop_workers`] follows.
    fn start_workers(
        &mut self,
        group: &WorkerGroup,
        workers: &[StartRequest],
    ) -> Result<BTreeMap<LocalRank, WorkerId>, SupervisorError>;

    /// Says how the workers are: `Healthy` while some run and none has failed, `Succeeded` when all
    /// have ended well (with what they returned), `Failed` with the failures in the order in which
    /// they happened, `Unhealthy` if workers run but are of no use (with a failure for each of them, or
    /// with none if that is all of them), `Unknown` if it cannot be said, which ends the run.
    ///
    /// May wait for news, `within` at most; an implementation that returns at once makes the agent
    /// ask again without a pause. Rendezvous and signals are looked after in between.
    fn monitor_workers(
        &mut self,
        group: &WorkerGroup,
        within: Duration,
    ) -> Result<MonitorResult, SupervisorError>;

    /// Ends all workers that run: asks them by `signal`, and forces those that are there after
    /// `grace`. When it returns none is left. Workers that are already gone, or never were there, are
    /// no error.
    fn stop_workers(
        &mut self,
        group: &WorkerGroup,
        signal: i32,
        grace: Duration,
    ) -> Result<(), SupervisorError>;

    /// The last call of every run, also of one that failed: the same as
    /// [`WorkerSupervisor::stop_workers`] for whatever may still be there, and everything else that is
    /// held is let go.
    fn shutdown(&mut self, signal: i32, grace: Duration);
}
