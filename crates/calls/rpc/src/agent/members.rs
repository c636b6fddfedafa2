//! Waiting for a group to be as it is wanted.

use std::time::{Duration, Instant};

use rdzv_rpc_proto::worker::WorkerInfo;

use crate::error::{RpcError, RpcErrorKind};
use crate::runtime::core::RpcAgent;

impl RpcAgent {
    /// Blocks until the workers of the group are as `wanted` says of them (this one is among them, and
    /// they are in the order of their ids), and tells who they are. It asks now, and after each change;
    /// a static group never changes.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::Deadline`] if that takes longer than `within`; it names who is there.
    /// [`RpcErrorKind::Stopping`] if the agent is stopped meanwhile.
    pub fn wait_for_group(
        &self,
        wanted: impl Fn(&[WorkerInfo]) -> bool,
        within: Duration,
    ) -> Result<Vec<WorkerInfo>, RpcError> {
        let began = Instant::now();
        let (lock, changed) = &self.core().group_changed;
        let mut guard = lock.lock();
        loop {
            let workers = self.workers();
            if wanted(&workers) {
                return Ok(workers);
            }
            if self.core().is_stopped() {
                return Err(RpcError::stopping());
            }
            let left = within.saturating_sub(began.elapsed());
            if left.is_zero() {
                let names: Vec<_> = workers.iter().map(|worker| worker.name.as_str()).collect();
                let text = format!(
                    "the group did not become what was waited for within {:.1} s; its workers are {}",
                    within.as_secs_f64(),
                    names.join(", ")
                );
                return Err(RpcError::new(RpcErrorKind::Deadline, text));
            }
            guard = changed.wait_timeout(guard, left).0;
        }
    }
}
