//! The devices of an agent and of the workers that it knows, as its group has settled them.

use std::collections::BTreeMap;

use rdzv_rpc_proto::device::{Device, DeviceData, DeviceMap};

use crate::error::{RpcError, RpcErrorKind};
use crate::runtime::call::Destination;
use crate::runtime::core::RpcAgent;

impl RpcAgent {
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
