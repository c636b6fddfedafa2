//! Backends by name: what makes options and agents.
//!
//! A registry hands out handles ([`Backend`]) that stay good whatever is registered afterwards.

use std::any::{Any, type_name};
use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::RwLock;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};
use rdzv_store::Store;
use serde::de::DeserializeOwned;

use crate::options::{Keywords, RpcOptions, from_words};
use crate::{Methods, RpcError};

mod built_in;
mod start;

pub use built_in::{ALIAS, BuiltIn, NAME};

/// The options of some backend. Which type it is tells the backend, if none is named.
pub trait BackendOptions: Any + fmt::Debug + Send + Sync {
    /// How long a call may take; `None` is for ever.
    fn timeout(&self) -> Option<Duration>;

    /// Where the store comes from: a URL.
    fn init_method(&self) -> &str;
}

impl BackendOptions for RpcOptions {
    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn init_method(&self) -> &str {
        &self.init_method
    }
}

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
    type Options: BackendOptions + Default + DeserializeOwned;

    /// Makes the agent: returns when the group is there.
    ///
    /// # Errors
    ///
    /// The failure that kept the group from being formed or joined; nothing is left running then.
    fn init(
        &self,
        arguments: InitArguments,
        options: &Self::Options,
    ) -> Result<Arc<dyn Agent>, RpcError>;
}

/// A backend whose type of options is not known any more.
trait ErasedBackend: Send + Sync {
    fn options(&self, words: &Keywords) -> Result<Arc<dyn BackendOptions>, RpcError>;
    fn accepts(&self, options: &dyn BackendOptions) -> bool;
    fn init(
        &self,
        arguments: InitArguments,
        options: &dyn BackendOptions,
    ) -> Result<Arc<dyn Agent>, RpcError>;
}

impl<B: RpcBackend> ErasedBackend for B {
    fn options(&self, words: &Keywords) -> Result<Arc<dyn BackendOptions>, RpcError> {
        Ok(Arc::new(from_words::<B::Options>(words)?))
    }

    fn accepts(&self, options: &dyn BackendOptions) -> bool {
        (options as &dyn Any).is::<B::Options>()
    }

    fn init(
        &self,
        arguments: InitArguments,
        options: &dyn BackendOptions,
    ) -> Result<Arc<dyn Agent>, RpcError> {
        let Some(options) = (options as &dyn Any).downcast_ref() else {
            let wanted = type_name::<B::Options>();
            let wanted = wanted.rsplit("::").next().unwrap_or(wanted);
            return Err(RpcError::invalid(format!(
                "`rpc_backend_options` must be a `{wanted}`. {options:?}"
            )));
        };
        RpcBackend::init(self, arguments, options)
    }
}

/// A registered backend. Printed as `BackendType.NAME`.
#[derive(Clone)]
pub struct Backend {
    name: Arc<str>,
    backend: Arc<dyn ErasedBackend>,
}

impl Backend {
    /// The name it is registered by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Options of this backend: its defaults, and those that are given as words.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a word that is not known and a value that is none.
    pub fn options(&self, words: &Keywords) -> Result<Arc<dyn BackendOptions>, RpcError> {
        self.backend.options(words)
    }

    /// An agent of this backend.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for options of another type, and the errors of the backend.
    pub fn init(
        &self,
        arguments: InitArguments,
        options: &dyn BackendOptions,
    ) -> Result<Arc<dyn Agent>, RpcError> {
        self.backend.init(arguments, options)
    }
}

impl PartialEq for Backend {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.backend, &other.backend)
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "BackendType.{}", self.name)
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Backends by name. [`BackendRegistry::of_process`] is the one that everybody shares.
#[derive(Debug, Default)]
pub struct BackendRegistry {
    /// The latest first, as the reference orders them.
    backends: RwLock<Vec<Backend>>,
}

impl BackendRegistry {
    /// Without any backend.
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry of this process. The built-in backend is in it, and makes an
    /// [`RpcAgent`](crate::RpcAgent).
    pub fn of_process() -> &'static Self {
        static OF_PROCESS: LazyLock<BackendRegistry> =
            LazyLock::new(|| BackendRegistry::with_built_in(BuiltIn::of_host()));
        &OF_PROCESS
    }

    /// All backends, the latest first.
    pub fn backends(&self) -> Vec<Backend> {
        self.backends.read().clone()
    }

    /// The backend of exactly this name.
    pub fn get(&self, name: &str) -> Option<Backend> {
        let mut backends = self.backends().into_iter();
        backends.find(|backend| backend.name() == name)
    }

    /// Whether there is a backend of exactly this name.
    pub fn is_registered(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Adds a backend. Handles that were given out before stay good.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the name is taken.
    pub fn register(
        &self,
        name: impl Into<Arc<str>>,
        backend: Arc<impl RpcBackend>,
    ) -> Result<Backend, RpcError> {
        let name = name.into();
        let mut backends = self.backends.write();
        if backends.iter().any(|backend| backend.name == name) {
            return Err(RpcError::invalid(format!(
                "RPC backend {name}: already registered"
            )));
        }
        let backend = Backend { name, backend };
        backends.insert(0, backend.clone());
        Ok(backend)
    }

    /// The backend and the options that a worker gets who names one of them, both or neither.
    ///
    /// Without a backend it is the first, the latest being asked first, that knows the options by
    /// their type; without either it is the built-in one.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the backend is not of this registry, or if no backend knows the options.
    pub fn resolve(
        &self,
        backend: Option<Backend>,
        options: Option<Arc<dyn BackendOptions>>,
    ) -> Result<(Backend, Arc<dyn BackendOptions>), RpcError> {
        let backend = match (backend, &options) {
            (Some(backend), _) if self.backends().contains(&backend) => backend,
            (Some(_), _) => {
                return Err(RpcError::invalid(
                    "Argument backend must be a member of BackendType",
                ));
            }
            (None, Some(options)) => self.infer(&**options)?,
            (None, None) => self.get(NAME).ok_or_else(|| {
                RpcError::invalid(format!("RPC backend {NAME} is not registered"))
            })?,
        };
        let options = match options {
            Some(options) => options,
            None => backend.options(&Keywords::new())?,
        };
        Ok((backend, options))
    }

    fn infer(&self, options: &dyn BackendOptions) -> Result<Backend, RpcError> {
        // A name and its alias know the same options: the name is found first.
        let mut backends = self.backends().into_iter();
        let found = backends.find(|backend| backend.backend.accepts(options));
        let found = found.ok_or_else(|| {
            RpcError::invalid(format!("Could not infer backend for options {options:?}"))
        })?;
        if ![NAME, ALIAS].contains(&found.name()) {
            tracing::warn!(
                "RPC was initialized with no explicit backend but with options of {found}, so that \
                 is used; name the backend to say so"
            );
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
