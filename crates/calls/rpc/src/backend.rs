//! Backends by name; each has its own agent type and its own options.

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

/// Name of the built-in backend.
pub const NAME: &str = "RDZV";

/// Alias for [`NAME`], known to users of PyTorch.
pub const ALIAS: &str = "TENSORPIPE";

/// Agent of a backend: a worker that makes and serves calls.
pub trait Agent: Any + fmt::Debug + Send + Sync {
    /// Returns the id and the name of this agent's worker.
    fn info(&self) -> WorkerInfo;

    /// Shuts the agent down.
    ///
    /// If `graceful` is `true`, the agent first waits up to `deadline` for calls in flight and for
    /// its group.
    ///
    /// # Errors
    ///
    /// Returns the first failure of the shutdown. The agent stops even then.
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
        // The agent does not notify the other members. A dynamic group removes it when its lease
        // expires.
        drop(self.take_group());
        Ok(())
    }
}

/// Arguments for creating an agent.
///
/// The type of `store` rejects a string at compile time:
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
    /// Store through which the workers form the group.
    pub store: Arc<dyn Store>,
    /// Name of this worker.
    pub name: WorkerName,
    /// Rank of this worker, which is also its id.
    pub rank: WorkerId,
    /// Number of workers; `None` for a dynamic group.
    pub world_size: Option<u32>,
    /// Methods that other workers can call on this worker.
    pub methods: Methods,
}

/// Backend that creates agents from its own type of options.
pub trait RpcBackend: Send + Sync + 'static {
    /// Type of the options; deserializing it must reject unknown keywords.
    type Options: Default + DeserializeOwned;

    /// Creates an agent, and returns when the agent has joined its group.
    ///
    /// # Errors
    ///
    /// Returns the error of forming or joining the group. No agent is running in this case.
    fn init(
        &self,
        arguments: InitArguments,
        options: Self::Options,
    ) -> Result<Arc<dyn Agent>, RpcError>;
}

/// Built-in backend, whose agents are [`RpcAgent`]s.
#[derive(Debug)]
pub struct BuiltIn {
    /// Backend for the accelerators of this host.
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

/// Function that creates an agent of a backend from keywords.
type Init =
    dyn Fn(InitArguments, &Keywords) -> Result<Arc<dyn Agent>, RpcError> + Send + Sync + 'static;

/// Backends by name; [`RpcBackendRegistry::of_process`] is the shared registry.
#[derive(Default)]
pub struct RpcBackendRegistry {
    backends: RwLock<BTreeMap<String, Arc<Init>>>,
}

impl RpcBackendRegistry {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the registry that the whole process shares.
    ///
    /// Initially it contains [`BuiltIn`] without accelerators, registered as [`NAME`] and as
    /// [`ALIAS`].
    pub fn of_process() -> &'static Self {
        static OF_PROCESS: LazyLock<RpcBackendRegistry> = LazyLock::new(|| {
            let registry = RpcBackendRegistry::new();
            for name in [NAME, ALIAS] {
                let devices = CpuOnly::shared();
                let registered = registry.register(name, BuiltIn { devices });
                registered.expect("the registry is new");
            }
            registry
        });
        &OF_PROCESS
    }

    /// `true` if a backend with exactly this name is registered.
    pub fn is_registered(&self, name: &str) -> bool {
        self.backends.read().contains_key(name)
    }

    /// Registers a backend under a name.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the name is already registered.
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

    /// Creates an agent with the backend that has this name.
    ///
    /// The keywords override the default options.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an unknown name, an unknown keyword or an invalid value. Otherwise
    /// returns the errors of the backend.
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
                "RPC backend {name} is not registered; the registered backends are: {}",
                known.join(", ")
            )));
        };
        init(arguments, words)
    }
}

impl fmt::Debug for RpcBackendRegistry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_set()
            .entries(self.backends.read().keys())
            .finish()
    }
}

#[cfg(test)]
mod tests;
