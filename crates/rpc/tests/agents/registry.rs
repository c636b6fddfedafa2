//! A group that is made through the registry of backends.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use rdzv_rpc::RpcAgent;
use rdzv_rpc::backend::{Agent, Backend, BackendOptions, BackendRegistry, BuiltIn, InitArguments};
use rdzv_rpc::options::Keywords;
use rdzv_rpc_proto::worker::{WorkerId, WorkerName};
use serde_json::json;

use super::{LONG, TWICE, methods, store};

#[derive(Debug)]
struct Foreign;

impl BackendOptions for Foreign {
    fn timeout(&self) -> Option<Duration> {
        None
    }

    fn init_method(&self) -> &'static str {
        "env://"
    }
}

/// Both workers, each by one of the names of the backend.
fn formed(backends: &[Backend; 2], words: &Keywords) -> Vec<Arc<dyn Agent>> {
    let store = store();
    std::thread::scope(|scope| {
        let workers = [0_u32, 1].map(|rank| {
            let backend = &backends[rank as usize];
            let arguments = InitArguments {
                store: Arc::clone(&store),
                name: WorkerName::new(format!("w{rank}")).unwrap(),
                rank: WorkerId(rank),
                world_size: Some(2),
                methods: methods(),
            };
            let options = backend.options(words).unwrap();
            scope.spawn(move || backend.init(arguments, &*options).unwrap())
        });
        workers.map(|worker| worker.join().unwrap()).into()
    })
}

#[test]
fn a_group_is_made_of_what_the_registry_gives() {
    let registry = BackendRegistry::with_built_in(BuiltIn::of_host());
    let backends = ["RDZV", "TENSORPIPE"].map(|name| registry.get(name).unwrap());
    // Handles stay good, whoever comes later.
    let later = Arc::new(BuiltIn::of_host());
    registry.register("LATER", later).unwrap();
    let words = json!({ "rpc_timeout": 7.0, "transports": ["tcp"], "address": "127.0.0.1" });
    let workers = formed(&backends, words.as_object().unwrap());
    assert_eq!(workers[1].info().to_string(), "WorkerInfo(id=1, name=w1)");
    let agent = (&*workers[0] as &dyn Any)
        .downcast_ref::<RpcAgent>()
        .unwrap();
    assert_eq!(agent.timeout(), Some(Duration::from_secs(7)));
    assert!(agent.is_static_group());
    assert_eq!(agent.call("w1", TWICE, &21).wait().unwrap(), 42);
    assert_eq!(agent.traffic().peers[0].transport, "tcp");
    std::thread::scope(|scope| {
        for worker in &workers {
            scope.spawn(|| worker.shutdown(true, LONG).unwrap());
        }
    });
}

#[test]
fn the_registry_of_the_process_has_the_built_in_backend() {
    let registry = BackendRegistry::of_process();
    let (backend, options) = registry.resolve(None, None).unwrap();
    assert_eq!(backend.to_string(), "BackendType.RDZV");
    assert_eq!(options.timeout(), Some(Duration::from_secs(60)));
    let arguments = InitArguments {
        store: store(),
        name: WorkerName::new("w0").unwrap(),
        rank: WorkerId(0),
        world_size: Some(1),
        methods: methods(),
    };
    let refused = registry.get("TENSORPIPE").unwrap();
    let refused = refused.init(arguments, &Foreign);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "`rpc_backend_options` must be a `RpcOptions`. Foreign"
    );
}
