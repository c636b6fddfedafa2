//! Workers in an agent's group, and the devices that the group agreed on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdzv_rpc_proto::device::{Device, DeviceData, DeviceMap};
use rdzv_rpc_proto::worker::WorkerInfo;

use crate::error::{RpcError, RpcErrorKind};
use crate::runtime::call::Destination;
use crate::runtime::core::RpcAgent;

impl RpcAgent {
    /// Blocks until the workers in the group satisfy `wanted`, and returns them.
    ///
    /// `wanted` gets all workers including this one, ordered by id. This function calls `wanted`
    /// immediately and after changes. The members of a static group never change.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::Deadline`] if `wanted` is still not satisfied after `within`; the error
    /// names the workers in the group. [`RpcErrorKind::Stopping`] if the agent stops first.
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
                    "the group did not reach the expected state within {:.1} s; its workers are {}",
                    within.as_secs_f64(),
                    names.join(", ")
                );
                return Err(RpcError::new(RpcErrorKind::Deadline, text));
            }
            guard = changed.wait_timeout(guard, left).0;
        }
    }

    /// Returns the accelerators of this worker, in order.
    ///
    /// These are the accelerators listed in the options. If the options list none, they are those
    /// in this worker's device maps and in the reverse maps.
    pub fn devices(&self) -> Vec<Device> {
        let view = self.core().view();
        view.map(|view| view.devices().to_vec()).unwrap_or_default()
    }

    /// Returns the device maps for results, by caller name.
    ///
    /// Each map translates devices of this worker to devices of the caller. It is the inverse of
    /// the caller's map for this worker.
    pub fn reverse_maps(&self) -> BTreeMap<String, DeviceMap> {
        let view = self.core().view();
        view.map(|view| view.reverse_maps().clone())
            .unwrap_or_default()
    }

    /// Returns the devices that a worker in the group has reported.
    ///
    /// The result contains the number of accelerators, the device maps and the device list. `which`
    /// may be this worker. No message is sent, because every worker has this data for all workers.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::UnknownWorker`] if no worker has this name or id.
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
