use std::sync::Mutex;

use rdzv_store::HashStore;
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::RpcErrorKind;

/// Options of a backend of the test's own.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Other {
    word: bool,
}

impl BackendOptions for Other {
    fn timeout(&self) -> Option<Duration> {
        None
    }

    fn init_method(&self) -> &'static str {
        "other://"
    }
}

/// Options that nobody knows.
#[derive(Debug)]
struct Unheard;

impl BackendOptions for Unheard {
    fn timeout(&self) -> Option<Duration> {
        None
    }

    fn init_method(&self) -> &'static str {
        ""
    }
}

/// A backend that remembers what it was given.
#[derive(Default)]
struct Recorder {
    inits: Mutex<Vec<(InitArguments, bool)>>,
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

fn agent(arguments: &InitArguments) -> Arc<dyn Agent> {
    Arc::new(Worker(WorkerInfo {
        id: arguments.rank,
        name: arguments.name.clone(),
    }))
}

impl RpcBackend for Recorder {
    type Options = Other;

    fn init(&self, arguments: InitArguments, options: &Other) -> Result<Arc<dyn Agent>, RpcError> {
        let agent = agent(&arguments);
        self.inits.lock().unwrap().push((arguments, options.word));
        Ok(agent)
    }
}

fn registry() -> BackendRegistry {
    BackendRegistry::with_built_in(BuiltIn::new(|arguments, _| Ok(agent(&arguments))))
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

#[test]
fn a_backend_is_registered_once_and_gets_what_it_is_given() {
    let registry = registry();
    assert!(!registry.is_registered("X"));
    let recorder = Arc::new(Recorder::default());
    let x = registry.register("X", recorder.clone()).unwrap();
    assert!(registry.is_registered("X"));
    assert!(!registry.is_registered("x"));
    assert_eq!((x.name(), x.to_string().as_str()), ("X", "BackendType.X"));
    let again = registry.register("X", recorder.clone()).unwrap_err();
    assert_eq!(again.to_string(), "RPC backend X: already registered");

    let given = arguments();
    let words = Keywords::from_iter([("word".to_owned(), true.into())]);
    let options = x.options(&words).unwrap();
    let agent = x.init(given.clone(), &*options).unwrap();
    assert_eq!(agent.info().to_string(), "WorkerInfo(id=3, name=w3)");
    x.init(arguments(), &*x.options(&Keywords::new()).unwrap())
        .unwrap();
    let inits = recorder.inits.lock().unwrap();
    let (got, word) = &inits[0];
    assert!(Arc::ptr_eq(&got.store, &given.store));
    assert_eq!((got.rank, got.world_size), (WorkerId(3), Some(4)));
    assert_eq!(got.name.as_str(), "w3");
    // The words that were given, and the defaults.
    assert_eq!((*word, inits[1].1), (true, false));
    let unknown = Keywords::from_iter([("other".to_owned(), 1.into())]);
    let error = x.options(&unknown).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
}

#[test]
fn the_built_in_backend_has_a_name_and_an_alias() {
    let registry = registry();
    for name in ["RDZV", "TENSORPIPE"] {
        assert!(registry.is_registered(name));
        let taken = registry.register(name, Arc::new(Recorder::default()));
        assert_eq!(
            taken.unwrap_err().to_string(),
            format!("RPC backend {name}: already registered")
        );
    }
    assert!(!registry.is_registered("tensorpipe"));
    let names: Vec<String> = registry.backends().iter().map(Backend::to_string).collect();
    assert_eq!(names, ["BackendType.RDZV", "BackendType.TENSORPIPE"]);
}

#[test]
fn a_handle_outlives_later_registrations() {
    let registry = registry();
    let old = registry.get("TENSORPIPE").unwrap();
    for name in ["X", "Y"] {
        registry
            .register(name, Arc::new(Recorder::default()))
            .unwrap();
    }
    let (backend, options) = registry.resolve(Some(old.clone()), None).unwrap();
    assert_eq!(backend, old);
    assert_eq!(
        backend.init(arguments(), &*options).unwrap().info().id,
        WorkerId(3)
    );
    // And the default is what it was.
    let (backend, options) = registry.resolve(None, None).unwrap();
    assert_eq!(backend.name(), "RDZV");
    assert!((&*options as &dyn Any).is::<RpcOptions>());
}

#[test]
fn the_backend_is_inferred_from_the_options() {
    let registry = registry();
    let (backend, _) = registry
        .resolve(None, Some(Arc::new(RpcOptions::default())))
        .unwrap();
    assert_eq!(backend.name(), "RDZV");
    let unknown = registry
        .resolve(None, Some(Arc::new(Other::default())))
        .unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "Could not infer backend for options Other { word: false }"
    );
    for name in ["X", "Y"] {
        registry
            .register(name, Arc::new(Recorder::default()))
            .unwrap();
    }
    let (backend, options) = registry
        .resolve(None, Some(Arc::new(Other::default())))
        .unwrap();
    // The latest of those that know them.
    assert_eq!(backend.name(), "Y");
    assert_eq!(options.init_method(), "other://");
    assert!(registry.resolve(None, Some(Arc::new(Unheard))).is_err());
}

#[test]
fn a_backend_of_another_registry_is_not_taken() {
    let registry = registry();
    let foreign = BackendRegistry::new()
        .register("RDZV", Arc::new(Recorder::default()))
        .unwrap();
    assert_eq!(
        registry
            .resolve(Some(foreign), None)
            .unwrap_err()
            .to_string(),
        "Argument backend must be a member of BackendType"
    );
}

#[test]
fn the_built_in_backend_takes_its_own_options_only() {
    let backend = registry().get("RDZV").unwrap();
    let error = backend.init(arguments(), &Other::default()).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
    assert_eq!(
        error.message,
        "`rpc_backend_options` must be a `RpcOptions`. Other { word: false }"
    );
    let options = RpcOptions::default();
    let refused = |arguments| backend.init(arguments, &options).unwrap_err();
    let mut wrong = arguments();
    wrong.world_size = Some(0);
    assert!(refused(wrong.clone()).message.contains("at least 1, got 0"));
    wrong.world_size = Some(3);
    assert!(refused(wrong.clone()).message.contains("rank 3"));
    wrong.world_size = None;
    assert!(backend.init(wrong, &options).is_ok());
}

#[test]
fn options_of_the_built_in_backend_are_made_of_words() {
    let backend = registry().get("TENSORPIPE").unwrap();
    let options = backend.options(&Keywords::new()).unwrap();
    assert_eq!(options.timeout(), Some(Duration::from_secs(60)));
    assert_eq!(options.init_method(), "env://");
    let words = json!({ "num_threads": 3 });
    let error = backend.options(words.as_object().unwrap()).unwrap_err();
    assert!(
        error.message.contains("unknown field `num_threads`"),
        "{error}"
    );
}
