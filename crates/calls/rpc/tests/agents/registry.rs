//! Tests of a group whose agents come from the registry of backends.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use rdzv_rpc::backend::{BuiltIn, InitArguments, RpcBackendRegistry};
use rdzv_rpc::device::CpuOnly;
use rdzv_rpc::{RpcAgent, Timeout};
use rdzv_rpc_proto::worker::{WorkerId, WorkerName};
use serde_json::json;

use super::{LONG, TWICE, methods, store};

#[test]
fn a_group_is_made_of_what_the_registry_gives() {
    let registry = RpcBackendRegistry::of_process();
    let devices = CpuOnly::shared();
    registry.register("LATER", BuiltIn { devices }).unwrap();
    let words = json!({ "rpc_timeout": 7.0, "transports": ["tcp"], "address": "127.0.0.1" });
    let words = words.as_object().unwrap();
    let store = store();
    let workers = std::thread::scope(|scope| {
        let workers = [(0, "RDZV"), (1, "TENSORPIPE"), (2, "LATER")].map(|(rank, backend)| {
            let arguments = InitArguments {
                store: Arc::clone(&store),
                name: WorkerName::new(format!("w{rank}")).unwrap(),
                rank: WorkerId(rank),
                world_size: Some(3),
                methods: methods(),
            };
            scope.spawn(move || registry.init(backend, arguments, words).unwrap())
        });
        workers.map(|worker| worker.join().unwrap())
    });
    assert_eq!(workers[1].info().to_string(), "WorkerInfo(id=1, name=w1)");
    let agent = (&*workers[0] as &dyn Any)
        .downcast_ref::<RpcAgent>()
        .unwrap();
    assert_eq!(agent.timeout(), Timeout::After(Duration::from_secs(7)));
    assert!(agent.is_static_group());
    assert_eq!(agent.call("w1", TWICE, &21).wait().unwrap(), 42);
    assert_eq!(agent.traffic().peers[0].transport, "tcp");
    std::thread::scope(|scope| {
        for worker in &workers {
            scope.spawn(|| worker.shutdown(true, LONG).unwrap());
        }
    });
}
