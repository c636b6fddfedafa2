//! Checks that an application can name every type in the public signatures.
//!
//! The application depends on `rdzv-rpc` and on no other crate of rdzv.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::sync::Arc;

use rdzv_rpc::device::{BadDevice, Device, DeviceMap, DeviceType, NotOneToOne};
use rdzv_rpc::group::{Group, GroupView, Member, NotUnique, ViewChange};
use rdzv_rpc::init_method::{Environment, open_store};
use rdzv_rpc::tensor::{DataType, TensorMeta};
use rdzv_rpc::transport::{Carrier, Leases, Peer, PeerAddress};
use rdzv_rpc::{
    BadName, CallContext, FrameLimits, ReferenceSettings, RpcAgent, RpcAgentBuilder, RpcError,
    RpcOptions, Store, Timeout, WorkerId, WorkerInfo, WorkerName,
};

/// An application that starts an agent, with explicit types.
fn start(store: Arc<dyn Store>, name: &str) -> Result<RpcAgent, RpcError> {
    let limits: FrameLimits = FrameLimits::default();
    let references: ReferenceSettings = ReferenceSettings::default();
    let options = RpcOptions {
        message_limit: limits.total,
        timeout: Timeout::Never,
        references,
        ..RpcOptions::default()
    };
    let builder: RpcAgentBuilder = RpcAgent::builder(name).rank(0).world_size(1);
    builder.store(store).options(options).connect()
}

fn caller(context: &CallContext) -> WorkerInfo {
    context.caller().clone()
}

fn seen_by(carrier: &Carrier) -> (Option<Peer>, Option<Arc<Leases>>) {
    (carrier.process, carrier.arenas.clone())
}

fn members(group: &Group) -> (Arc<GroupView>, Vec<Member>) {
    let view: Arc<GroupView> = group.view();
    let members = view.members().map(|member| (**member).clone()).collect();
    (view, members)
}

#[test]
fn whatever_public_signatures_name_can_be_named() {
    let name: Result<WorkerName, BadName> = WorkerName::new("not a name");
    assert!(name.is_err());
    let device: Result<Device, BadDevice> = "cuda:1".parse();
    let device = device.unwrap();
    assert_eq!(device.kind(), DeviceType::ACCELERATOR);
    let map: Result<DeviceMap, NotOneToOne> = DeviceMap::new([(device, Device::CPU)]);
    let mut options = RpcOptions::default();
    options.device_maps.insert("w1".to_owned(), map.unwrap());
    let environment: Environment = Environment::of_process();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("store").display());
    let met = open_store(&url, Some(0), Some(1), options.init_deadline, environment).unwrap();
    let id: WorkerId = met.rank;
    let agent = start(met.store, "w0").unwrap();
    assert_eq!(agent.me().id, id);
    agent.shutdown(options.init_deadline).unwrap();
    let _ = (caller, seen_by, members);
    let _: Option<(DataType, TensorMeta, PeerAddress)> = None;
    let _: Option<(ViewChange, NotUnique)> = None;
}
