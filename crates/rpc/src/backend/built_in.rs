//! The backend that rdzv brings along.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdzv_rpc_proto::worker::WorkerInfo;

use super::start::start;
use super::{Agent, BackendRegistry, InitArguments, RpcBackend};
use crate::device::{CpuOnly, DeviceBackend};
use crate::init_method::check_size;
use crate::options::RpcOptions;
use crate::{RpcAgent, RpcError};

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

    /// A backend whose agents are [`RpcAgent`]s of a host without accelerators.
    pub fn of_host() -> Self {
        Self::of_devices(&CpuOnly::shared())
    }

    /// A backend whose agents are [`RpcAgent`]s of a host with these devices.
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
        let built_in = Arc::new(built_in);
        // The name last, so that it is found first.
        for name in [ALIAS, NAME] {
            registry
                .register(name, Arc::clone(&built_in))
                .expect("the registry is new");
        }
        registry
    }
}

impl RpcBackend for BuiltIn {
    type Options = RpcOptions;

    fn init(
        &self,
        arguments: InitArguments,
        options: &RpcOptions,
    ) -> Result<Arc<dyn Agent>, RpcError> {
        options.check()?;
        check_size(Some(arguments.rank.0), arguments.world_size)?;
        (self.start)(arguments, options)
    }
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
