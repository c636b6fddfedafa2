//! The workers of the group of an agent, and their devices, as the group has settled them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdzv_rpc_proto::device::{Device, DeviceData, DeviceMap};
use rdzv_rpc_proto::worker::WorkerInfo;

use crate::error::{RpcError, RpcErrorKind};
use crate::runtime::call::Destination;
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

    /// The accelerators that this worker uses, in order: those that its options list, else those that
    /// its own device maps and the reverse maps name.
    pub fn devices(&self) -> Vec<Device> {
        let view = self.core().view();
        view.map(|view| view.devices().to_vec()).unwrap_or_default()
    }

    /// By the name of a caller: where this worker's devices appear there, which results go by. It is
    /// the inverse of the caller's own map for this worker.
    pub fn reverse_maps(&self) -> BTreeMap<String, DeviceMap> {
        let view = self.core().view();
        view.map(|view| view.reverse_maps().clone())
            .unwrap_or_default()
    }

    /// The number of accelerators, the device maps and the device list that a worker of the group has
    /// told of itself, this one included. Nobody is asked: every worker of a group knows them of all.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::UnknownWorker`] if nobody has this name or id.
    pub fn device_infos<'a>(
        &self,
        which: impl Into<Destination<'a>>,
    ) -> Result<DeviceData, RpcError> {
        let core = self.core();
        let id = core.member(&which.into())?.info.id;
        let Some(view) = core.view() else {
            return Ok(DeviceData::default());
        };
        let member = view.with_id(id).ok_or_else(|| {
            let (name, rank) = (&core.me.name, core.me.id);
            let text = format!("name:{name},rank:{rank} could not find destination id {id}");
            RpcError::new(RpcErrorKind::UnknownWorker, text)
        })?;
        Ok(member.device.clone())
    }
}
