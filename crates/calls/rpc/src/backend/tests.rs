use std::sync::Mutex;

use rdzv_store::HashStore;
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::RpcErrorKind;

/// Options of a backend that only these tests use.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Other {
    word: bool,
}

/// A backend that records its arguments.
#[derive(Default)]
struct Recorder {
    inits: Arc<Mutex<Vec<(InitArguments, bool)>>>,
}

#[derive(Debug)]
struct Worker(WorkerInfo);

impl Agent for Worker {
    fn info(&self) -> WorkerInfo {
        self.0.clone()
    }

    fn shutdown(&self, _graceful: bool, _deadline: Duration) -> Result<(), RpcError> {
        Ok(())
    }
}

impl RpcBackend for Recorder {
    type Options = Other;

    fn init(&self, arguments: InitArguments, options: Other) -> Result<Arc<dyn Agent>, RpcError> {
        let agent = Worker(WorkerInfo {
            id: arguments.rank,
            name: arguments.name.clone(),
        });
        self.inits.lock().unwrap().push((arguments, options.word));
        Ok(Arc::new(agent))
    }
}

fn arguments() -> InitArguments {
    InitArguments {
        store: Arc::new(HashStore::new()),
        name: WorkerName::new("w3").unwrap(),
        rank: WorkerId(3),
        world_size: Some(4),
        methods: Methods::new(),
    }
}

fn words(words: &serde_json::Value) -> &Keywords {
    words.as_object().unwrap()
}

#[test]
fn a_backend_is_registered_once_and_gets_what_it_is_given() {
    let registry = RpcBackendRegistry::new();
    assert!(!registry.is_registered("X"));
    let recorder = Recorder::default();
    let inits = Arc::clone(&recorder.inits);
    registry.register("X", recorder).unwrap();
    assert!(registry.is_registered("X"));
    assert!(!registry.is_registered("x"));
    let again = registry.register("X", Recorder::default()).unwrap_err();
    assert_eq!(again.to_string(), "RPC backend X: already registered");

    let given = arguments();
    let agent = registry.init("X", given.clone(), words(&json!({ "word": true })));
    assert_eq!(
        agent.unwrap().info().to_string(),
        "WorkerInfo(id=3, name=w3)"
    );
    registry.init("X", arguments(), &Keywords::new()).unwrap();
    let inits = inits.lock().unwrap();
    let (got, word) = &inits[0];
    assert!(Arc::ptr_eq(&got.store, &given.store));
    assert_eq!((got.rank, got.world_size), (WorkerId(3), Some(4)));
    assert_eq!(got.name.as_str(), "w3");
    // The keyword of the first agent, and the default for the second.
    assert_eq!((*word, inits[1].1), (true, false));
    let unknown = registry.init("X", arguments(), words(&json!({ "other": 1 })));
    assert_eq!(unknown.unwrap_err().kind, RpcErrorKind::InvalidArgument);
    let unknown = registry
        .init("Z", arguments(), &Keywords::new())
        .unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "RPC backend Z is not registered; the registered backends are: X"
    );
}

#[test]
fn the_built_in_backend_has_a_name_and_an_alias() {
    let registry = RpcBackendRegistry::of_process();
    for name in ["RDZV", "TENSORPIPE"] {
        assert!(registry.is_registered(name));
        let taken = registry.register(name, Recorder::default());
        assert_eq!(
            taken.unwrap_err().to_string(),
            format!("RPC backend {name}: already registered")
        );
    }
    assert!(!registry.is_registered("tensorpipe"));
}

#[test]
fn the_built_in_backend_refuses_what_cannot_be() {
    let registry = RpcBackendRegistry::of_process();
    let refused = |arguments, options: serde_json::Value| {
        let error = registry
            .init("RDZV", arguments, words(&options))
            .unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::InvalidArgument, "{error}");
        error.message
    };
    let mut wrong = arguments();
    wrong.world_size = Some(0);
    assert!(refused(wrong.clone(), json!({})).contains("at least 1, got 0"));
    wrong.world_size = Some(3);
    assert!(refused(wrong, json!({})).contains("rank 3"));
    let unknown = refused(arguments(), json!({ "num_threads": 3 }));
    assert!(unknown.contains("unknown field `num_threads`"), "{unknown}");
}
