//! Members of a group, with what a worker needs to call them.

use std::collections::BTreeMap;
use std::sync::Arc;

use rdzv_rpc_proto::rref::Member as Holder;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo};

use crate::bulk::remote_read::Lending;
use crate::transport::PeerAddress;

#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) info: WorkerInfo,
    pub(crate) incarnation: u64,
    pub(crate) peer_address: PeerAddress,
}

impl Member {
    pub(crate) fn holder(&self) -> Holder {
        Holder::new(self.info.id, self.incarnation)
    }
}

/// The worker at the calling end of a connection.
pub(crate) struct Caller {
    pub(crate) worker: WorkerInfo,
    pub(crate) incarnation: u64,
    pub(crate) lending: Arc<Lending>,
}

impl Caller {
    pub(crate) fn holder(&self) -> Holder {
        Holder::new(self.worker.id, self.incarnation)
    }
}

pub(crate) type Members = BTreeMap<WorkerId, Member>;
