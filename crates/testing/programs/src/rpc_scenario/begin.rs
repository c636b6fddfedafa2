//! Backends, and becoming the worker of a group.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rdzv_rpc::backend::{BackendOptions, BackendRegistry, BuiltIn, NAME, RpcBackend};
use rdzv_rpc::device::testing::FakeDevices;
use rdzv_rpc::options::{Keywords, RpcOptions};
use rdzv_rpc::{RpcError, init_rpc};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Worker, offered};

/// The arguments of `init_rpc`, the options as words.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Init {
    name: String,
    rank: Option<u32>,
    world_size: Option<u32>,
    backend: Option<String>,
    init_method: String,
    /// Of calls, in seconds.
    timeout: f64,
    options: Keywords,
    /// Options of a type that the built-in backend does not know.
    foreign: bool,
}

impl Default for Init {
    fn default() -> Self {
        Self {
            name: String::new(),
            rank: None,
            world_size: None,
            backend: None,
            init_method: RpcOptions::default().init_method,
            timeout: 60.0,
            options: Keywords::new(),
            foreign: false,
        }
    }
}

/// Options of no backend.
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

impl Worker {
    /// Registers a backend, and keeps its handle.
    pub(crate) fn register(&mut self, name: &str, devices: u32) -> Result<Value, RpcError> {
        let devices = FakeDevices::shared(devices);
        let built_in = BuiltIn::of_devices(&devices);
        let received = Arc::clone(&self.received);
        let handlers = BuiltIn::new(move |arguments, options| {
            let keys = arguments.store.num_keys();
            *received.lock().unwrap_or_else(PoisonError::into_inner) = json!({
                "store": keys.is_ok(),
                "name": arguments.name.as_str(),
                "rank": arguments.rank.0,
                "world_size": arguments.world_size,
                "threads": options.num_worker_threads,
            });
            built_in.init(arguments, options)
        });
        let registry = BackendRegistry::of_process();
        let backend = registry.register(name, Arc::new(handlers))?;
        let shown = backend.to_string();
        self.backends.insert(name.to_owned(), backend);
        self.devices = Some(devices);
        Ok(json!(shown))
    }

    /// Returns when the group is there, with what the backend was given, if it was registered here.
    pub(crate) fn init(&self, init: &Init) -> Result<Value, RpcError> {
        let registry = BackendRegistry::of_process();
        let handle = |name: &String| {
            let kept = self.backends.get(name).cloned();
            let backend = kept.or_else(|| registry.get(name));
            backend.unwrap_or_else(|| panic!("there is no backend {name}"))
        };
        let backend = init.backend.as_ref().map(handle);
        let mut words = init.options.clone();
        words.insert("rpc_timeout".to_owned(), init.timeout.into());
        words.insert("init_method".to_owned(), init.init_method.clone().into());
        let options: Arc<dyn BackendOptions> = match (&backend, init.foreign) {
            (_, true) => Arc::new(Foreign),
            (Some(backend), _) => backend.options(&words)?,
            (None, _) => handle(&NAME.to_owned()).options(&words)?,
        };
        let agent = init_rpc(
            &init.name,
            backend.as_ref(),
            init.rank,
            init.world_size,
            Some(options),
            offered::methods(&self.board),
        )?;
        let received = self.received.lock();
        let received = received.unwrap_or_else(PoisonError::into_inner).clone();
        Ok(json!({ "rank": agent.me().id.0, "received": received }))
    }
}
