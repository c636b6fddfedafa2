//! The backend that rdzv brings along.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::start::start;
use super::{Agent, BackendOptions, BackendRegistry, InitArguments, RpcBackend};
use crate::device::{CpuOnly, DeviceBackend};
use crate::options::{OptionArguments, RpcOptions};
use crate::{RpcError, RpcErrorKind};

/// Its name.
pub const NAME: &str = "RDZV";

/// The name that the reference's users know.
pub const ALIAS: &str = "TENSORPIPE";

/// Makes the agent, when everything that can be known to be wrong has been refused.
type Start = dyn Fn(InitArguments, &RpcOptions) -> Result<Arc<dyn Agent>, RpcError> + Send + Sync;

/// The backend whose options are [`RpcOptions`].
pub struct BuiltIn {
    start: Box<Start>,
}

impl fmt::Debug for BuiltIn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("BuiltIn")
    }
}

impl BuiltIn {
    /// A backend whose agents are made by `start`, which gets arguments that have been checked.
    pub fn new(
        start: impl Fn(InitArguments, &RpcOptions) -> Result<Arc<dyn Agent>, RpcError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            start: Box::new(start),
        }
    }

    /// A backend whose agents are [`RpcAgent`](crate::RpcAgent)s of a host without accelerators.
    pub fn of_host() -> Self {
        Self::of_devices(&CpuOnly::shared())
    }

    /// A backend whose agents are [`RpcAgent`](crate::RpcAgent)s of a host with these devices.
    pub fn of_devices(devices: &Arc<dyn DeviceBackend>) -> Self {
        let devices = Arc::clone(devices);
        Self::new(move |arguments, options| {
            let agent = start(arguments, options, &devices)?;
            Ok(Arc::new(agent))
        })
    }
}

impl BackendRegistry {
    /// With the built-in backend, under its name and its alias.
    pub fn with_built_in(built_in: BuiltIn) -> Self {
        let registry = Self::new();
        let handlers: Arc<dyn RpcBackend> = Arc::new(built_in);
        // The name last, so that it is found first.
        for name in [ALIAS, NAME] {
            registry
                .register_backend(name, Arc::clone(&handlers))
                .expect("the registry is new");
        }
        registry
    }
}

impl RpcBackend for BuiltIn {
    fn default_options(&self) -> Arc<dyn BackendOptions> {
        Arc::new(RpcOptions::default())
    }

    fn construct_options(
        &self,
        arguments: &OptionArguments,
    ) -> Result<Arc<dyn BackendOptions>, RpcError> {
        Ok(Arc::new(RpcOptions::construct(arguments)?))
    }

    fn accepts(&self, options: &dyn BackendOptions) -> bool {
        (options as &dyn Any).is::<RpcOptions>()
    }

    fn init(&self, arguments: InitArguments) -> Result<Arc<dyn Agent>, RpcError> {
        let invalid = |message| Err(RpcError::new(RpcErrorKind::InvalidArgument, message));
        let options = Arc::clone(&arguments.options);
        let Some(options) = (&*options as &dyn Any).downcast_ref::<RpcOptions>() else {
            return invalid(format!(
                "`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`. {:?}",
                arguments.options
            ));
        };
        match arguments.world_size {
            Some(0) => invalid(
                "a static RPC group needs a world size of at least 1, got 0; for a group that \
                 workers join and leave, give none at all"
                    .to_owned(),
            ),
            Some(world_size) if arguments.rank.0 >= world_size => invalid(format!(
                "worker {} has rank {}, which is not below the world size of {world_size}",
                arguments.name, arguments.rank
            )),
            _ => (self.start)(arguments, options),
        }
    }
}
