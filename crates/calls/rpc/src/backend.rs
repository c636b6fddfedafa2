//! Backends by name: each makes agents of its make, with options of its own.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rdzv_lock::RwLock;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};
use rdzv_store::Store;
use serde::de::DeserializeOwned;

use crate::device::{CpuOnly, DeviceBackend};
use crate::options::{Keywords, RpcOptions, from_words};
use crate::{Methods, RpcAgent, RpcError};

/// The name of the backend that rdzv brings along.
pub const NAME: &str = "RDZV";

/// Its other name, which users of PyTorch know.
pub const ALIAS: &str = "TENSORPIPE";

/// What a backend makes: a worker that calls and is called.
pub trait Agent: Any + fmt::Debug + Send + Sync {
    /// The worker that it is.
    fn info(&self) -> WorkerInfo;

    /// Ends it; gracefully means after everybody's calls are over, at most until the deadline.
    ///
    /// # Errors
    ///
    /// What went wrong on the way. The agent has ended all the same.
    fn shutdown(&self, graceful: bool, deadline: Duration) -> Result<(), RpcError>;
}

impl Agent for RpcAgent {
    fn info(&self) -> WorkerInfo {
        self.me().clone()
    }

    fn shutdown(&self, graceful: bool, deadline: Duration) -> Result<(), RpcError> {
        if graceful {
            return Self::shutdown(self, deadline);
        }
        self.stop();
        // Nobody is told: its lease runs out.
        drop(self.take_group());
        Ok(())
    }
}

/// What an agent is made of.
///
/// The store has to be one, and the compiler sees to it:
///
/// ```compile_fail,E0308
/// # use std::sync::Arc;
/// # use rdzv_rpc::backend::InitArguments;
/// # let (name, rank) = (unimplemented!(), unimplemented!());
/// let arguments = InitArguments {
///     store: "tcp://localhost:29500".to_owned(),
///     name,
///     rank,
///     world_size: None,
///     methods: rdzv_rpc::Methods::new(),
/// };
/// ```
#[derive(Debug, Clone)]
pub struct InitArguments {
    /// Where the workers of the group meet.
    pub store: Arc<dyn Store>,
    /// The name of this worker.
    pub name: WorkerName,
    /// Its id.
    pub rank: WorkerId,
    /// How many workers there are; `None` makes a dynamic group.
    pub world_size: Option<u32>,
    /// What others can call.
    pub methods: Methods,
}

/// A backend: a type of options, and agents that are made with them.
pub trait RpcBackend: Send + Sync + 'static {
    /// The options. Words that are not known have to be refused.
    type Options: Default + DeserializeOwned;

    /// Makes the agent: returns when the group is there.
    ///
    /// # Errors
    ///
    /// The failure that kept the group from being formed or joined; nothing is left running then.
    fn init(
        &self,
        arguments: InitArguments,
        options: Self::Options,
    ) -> Result<Arc<dyn Agent>, RpcError>;
}

/// The backend that rdzv brings along: its agents are [`RpcAgent`]s.
#[derive(Debug)]
pub struct BuiltIn {
    /// The devices of this host.
    pub devices: Arc<dyn DeviceBackend>,
}

impl RpcBackend for BuiltIn {
    type Options = RpcOptions;

    fn init(
        &self,
        arguments: InitArguments,
        options: RpcOptions,
    ) -> Result<Arc<dyn Agent>, RpcError> {
        let agent = RpcAgent::builder(arguments.name.as_str())
            .rank(arguments.rank.0)
            .world_size(arguments.world_size)
            .store(arguments.store)
            .methods(arguments.methods)
            .options(options)
            .device_backend(Arc::clone(&self.devices))
            .connect()?;
        Ok(Arc::new(agent))
    }
}

/// A backend whose type of options is not known any more: makes an agent out of words.
type Init =
    dyn Fn(InitArguments, &Keywords) -> Result<Arc<dyn Agent>, RpcError> + Send + Sync + 'static;

/// Backends by name. [`BackendRegistry::of_process`] is the one that everybody shares.
#[derive(Default)]
pub struct BackendRegistry {
    backends: RwLock<BTreeMap<String, Arc<Init>>>,
}

impl BackendRegistry {
    /// Without any backend.
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry of this process. [`BuiltIn`] is in it, for a host without accelerators, as [`NAME`] and as
    /// [`ALIAS`].
    pub fn of_process() -> &'static Self {
        static OF_PROCESS: LazyLock<BackendRegistry> = LazyLock::new(|| {
            let registry = BackendRegistry::new();
            for name in [NAME, ALIAS] {
                let devices = CpuOnly::shared();
                let registered = registry.register(name, BuiltIn { devices });
                registered.expect("the registry is new");
            }
            registry
        });
        &OF_PROCESS
    }

    /// Whether there is a backend of exactly this name.
    pub fn is_registered(&self, name: &str) -> bool {
        self.backends.read().contains_key(name)
    }

    /// Adds a backend.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the name is taken.
    pub fn register<B: RpcBackend>(&self, name: &str, backend: B) -> Result<(), RpcError> {
        let mut backends = self.backends.write();
        if backends.contains_key(name) {
            return Err(RpcError::invalid(format!(
                "RPC backend {name}: already registered"
            )));
        }
        let init = move |arguments, words: &Keywords| {
            RpcBackend::init(&backend, arguments, from_words::<B::Options>(words)?)
        };
        backends.insert(name.to_owned(), Arc::new(init));
        Ok(())
    }

    /// Makes an agent of the backend of this name. Its options are the defaults, and those that are given as
    /// words.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a name, a word or a value that is not known; and those of the backend.
    pub fn init(
        &self,
        name: &str,
        arguments: InitArguments,
        words: &Keywords,
    ) -> Result<Arc<dyn Agent>, RpcError> {
        let init = self.backends.read().get(name).cloned();
        let Some(init) = init else {
            let known: Vec<String> = self.backends.read().keys().cloned().collect();
            return Err(RpcError::invalid(format!(
                "RPC backend {name} is not registered; these are: {}",
                known.join(", ")
            )));
        };
        init(arguments, words)
    }
}

impl fmt::Debug for BackendRegistry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_set()
            .entries(self.backends.read().keys())
            .finish()
    }
}

#[cfg(test)]
mod tests;
