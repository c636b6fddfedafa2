//! Start of the worker of a group.

use std::sync::Arc;
use std::time::Duration;

use rdzv_rpc::options::Keywords;
use rdzv_rpc::{RpcAgent, RpcError, RpcOptions, init_rpc};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Worker, offered};

/// Arguments of an agent, with its options as keywords.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Init {
    name: String,
    rank: Option<u32>,
    world_size: Option<u32>,
    init_method: String,
    /// Timeout of calls, in seconds.
    timeout: f64,
    options: Keywords,
    /// Settings that are not keywords, in seconds.
    /// They are the time for a greeting, and the time after which unreachable users lose
    /// references.
    greeting: Option<f64>,
    lost_after: Option<f64>,
    /// Maximum data size of the process, in bytes.
    /// It protects the machine from an attack without a bound.
    data: Option<u64>,
}

impl Default for Init {
    fn default() -> Self {
        Self {
            name: String::new(),
            rank: None,
            world_size: None,
            init_method: RpcOptions::default().init_method,
            timeout: 60.0,
            options: Keywords::new(),
            greeting: None,
            lost_after: None,
            data: None,
        }
    }
}

impl Worker {
    /// Starts the agent, and returns when the group has formed.
    pub(crate) fn init(&self, init: &Init) -> Result<Value, RpcError> {
        let mut words = init.options.clone();
        words.insert("rpc_timeout".to_owned(), init.timeout.into());
        words.insert("init_method".to_owned(), init.init_method.clone().into());
        let mut options = RpcOptions::from_words(&words)?;
        if let Some(seconds) = init.greeting {
            options.transport.greeting = Duration::from_secs_f64(seconds);
        }
        if let Some(seconds) = init.lost_after {
            options.references.lost_after = Duration::from_secs_f64(seconds);
        }
        if init.data.is_some() {
            let (current, maximum) = (init.data, init.data);
            setrlimit(Resource::Data, Rlimit { current, maximum }).expect("less than now");
        }
        let mut builder = RpcAgent::builder(&init.name)
            .world_size(init.world_size)
            .methods(offered::methods(&self.counts))
            .options(options);
        if let Some(rank) = init.rank {
            builder = builder.rank(rank);
        }
        if let Some(devices) = &self.devices {
            builder = builder.device_backend(Arc::clone(devices));
        }
        let agent = init_rpc(builder)?;
        Ok(json!({ "rank": agent.me().id.0 }))
    }
}
