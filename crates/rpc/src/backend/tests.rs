use std::sync::Mutex;

use rdzv_store::HashStore;

use super::*;

/// Options of a backend of the test's own.
#[derive(Debug)]
struct Other;

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
    constructed: Mutex<Vec<OptionArguments>>,
    inits: Mutex<Vec<InitArguments>>,
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
    fn default_options(&self) -> Arc<dyn BackendOptions> {
        Arc::new(Other)
    }

    fn construct_options(
        &self,
        arguments: &OptionArguments,
    ) -> Result<Arc<dyn BackendOptions>, RpcError> {
        self.constructed.lock().unwrap().push(arguments.clone());
        Ok(Arc::new(Other))
    }

    fn accepts(&self, options: &dyn BackendOptions) -> bool {
        (options as &dyn Any).is::<Other>()
    }

    fn init(&self, arguments: InitArguments) -> Result<Arc<dyn Agent>, RpcError> {
        let agent = agent(&arguments);
        self.inits.lock().unwrap().push(arguments);
        Ok(agent)
    }
}

fn registry() -> BackendRegistry {
    BackendRegistry::with_built_in(BuiltIn::new(|arguments, _| Ok(agent(&arguments))))
}

fn arguments(options: Arc<dyn BackendOptions>) -> InitArguments {
    InitArguments {
        store: Arc::new(HashStore::new()),
        name: WorkerName::new("w3").unwrap(),
        rank: WorkerId(3),
        world_size: Some(4),
        options,
        methods: Methods::new(),
    }
}

#[test]
fn a_backend_is_registered_once_and_gets_what_it_is_given() {
    let registry = registry();
    assert!(!registry.backend_registered("X"));
    let recorder = Arc::new(Recorder::default());
    let x = registry.register_backend("X", recorder.clone()).unwrap();
    assert!(registry.backend_registered("X"));
    assert!(!registry.backend_registered("x"));
    assert_eq!((x.name(), x.to_string().as_str()), ("X", "BackendType.X"));
    let again = registry
        .register_backend("X", recorder.clone())
        .unwrap_err();
    assert_eq!(again.to_string(), "RPC backend X: already registered");

    let given = arguments(Arc::new(Other));
    let agent = x.init(given.clone()).unwrap();
    assert_eq!(agent.info().to_string(), "WorkerInfo(id=3, name=w3)");
    let inits = recorder.inits.lock().unwrap();
    assert!(Arc::ptr_eq(&inits[0].store, &given.store));
    assert!(Arc::ptr_eq(&inits[0].options, &given.options));
    assert_eq!((inits[0].rank, inits[0].world_size), (WorkerId(3), Some(4)));
    assert_eq!(inits[0].name.as_str(), "w3");

    let words = OptionArguments {
        rpc_timeout: Some(7.0),
        init_method: "tcp://h:1".to_owned(),
        keywords: [("word".to_owned(), true.into())].into_iter().collect(),
    };
    x.construct_options(&words).unwrap();
    x.construct_options(&OptionArguments::default()).unwrap();
    let constructed = recorder.constructed.lock().unwrap();
    assert_eq!(constructed[0], words);
    assert_eq!(constructed[1].rpc_timeout, Some(60.0));
    assert_eq!(constructed[1].init_method, "env://");
    assert!(constructed[1].keywords.is_empty());
}

#[test]
fn the_built_in_backend_has_a_name_and_an_alias() {
    let registry = registry();
    for name in ["RDZV", "TENSORPIPE"] {
        assert!(registry.backend_registered(name));
        let taken = registry.register_backend(name, Arc::new(Recorder::default()));
        assert_eq!(
            taken.unwrap_err().to_string(),
            format!("RPC backend {name}: already registered")
        );
    }
    assert!(!registry.backend_registered("tensorpipe"));
    let names: Vec<String> = registry.backends().iter().map(Backend::to_string).collect();
    assert_eq!(names, ["BackendType.RDZV", "BackendType.TENSORPIPE"]);
}

#[test]
fn a_handle_outlives_later_registrations() {
    let registry = registry();
    let old = registry.get("TENSORPIPE").unwrap();
    for name in ["X", "Y"] {
        registry
            .register_backend(name, Arc::new(Recorder::default()))
            .unwrap();
    }
    let (backend, options) = registry.resolve(Some(old.clone()), None).unwrap();
    assert_eq!(backend, old);
    assert_eq!(
        backend.init(arguments(options)).unwrap().info().id,
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
    let unknown = registry.resolve(None, Some(Arc::new(Other))).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "Could not infer backend for options Other"
    );
    for name in ["X", "Y"] {
        registry
            .register_backend(name, Arc::new(Recorder::default()))
            .unwrap();
    }
    let (backend, options) = registry.resolve(None, Some(Arc::new(Other))).unwrap();
    // The latest of those that know them.
    assert_eq!(backend.name(), "Y");
    assert_eq!(options.init_method(), "other://");
    assert!(registry.resolve(None, Some(Arc::new(Unheard))).is_err());
}

#[test]
fn a_backend_of_another_registry_is_not_taken() {
    let registry = registry();
    let foreign = BackendRegistry::new()
        .register_backend("RDZV", Arc::new(Recorder::default()))
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
    let refused = |arguments| backend.init(arguments).unwrap_err();
    let error = refused(arguments(Arc::new(Other)));
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
    assert_eq!(
        error.message,
        "`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`. Other"
    );
    let mut wrong = arguments(Arc::new(RpcOptions::default()));
    wrong.world_size = Some(0);
    assert!(refused(wrong.clone()).message.contains("at least 1, got 0"));
    wrong.world_size = Some(3);
    assert!(refused(wrong.clone()).message.contains("rank 3"));
    wrong.world_size = None;
    assert!(backend.init(wrong).is_ok());
}

#[test]
fn options_of_the_built_in_backend_are_made_of_words() {
    let backend = registry().get("TENSORPIPE").unwrap();
    let options = backend
        .construct_options(&OptionArguments::default())
        .unwrap();
    assert_eq!(options.timeout(), Some(Duration::from_secs(60)));
    assert_eq!(options.init_method(), "env://");
    let mut words = OptionArguments::default();
    words.keywords.insert("num_threads".to_owned(), 3.into());
    let error = backend.construct_options(&words).unwrap_err();
    assert!(error.message.contains("no option num_threads"), "{error}");
}
