//! What can be chosen about an agent.
//!
//! | file | what |
//! |---|---|
//! | here | all options; those of calls, devices and the group |
//! | `transport` | those of the way between workers |
//! | `keywords` | options as words and values, from another language or a file |

mod keywords;
mod transport;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use rdzv_rpc_proto::device::{Device, DeviceData, DeviceMap, DeviceType};
use rdzv_rpc_proto::frame::Limits;
use rdzv_rpc_proto::heartbeat;

use crate::group::{DEFAULT_LEASE, SHORTEST_LEASE};
use crate::{RpcError, RpcErrorKind};

pub use keywords::{Keywords, OptionArguments};
pub use transport::{Secret, TlsFiles, TransportName};

/// How long a call may take, if nothing else is said.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long forming or joining a group may take, if nothing else is said.
pub const DEFAULT_INIT_DEADLINE: Duration = Duration::from_secs(300);

/// How many handlers may block at a time, if nothing else is said.
pub const DEFAULT_WORKER_THREADS: u32 = 16;

/// Where the store comes from, if nothing else is said.
pub const DEFAULT_INIT_METHOD: &str = "env://";

/// Workers tell one another about references and groups in messages of this size.
const SMALLEST_MESSAGE_LIMIT: u64 = 64 << 10;

/// The options of the built-in backend.
#[derive(Debug, Clone, PartialEq)]
pub struct RpcOptions {
    timeout: Option<Duration>,
    init_method: String,
    worker_threads: u32,
    device_maps: BTreeMap<String, DeviceMap>,
    devices: Vec<Device>,
    transports: Option<Vec<TransportName>>,
    address: Option<IpAddr>,
    token: Option<Secret>,
    tls: Option<TlsFiles>,
    init_deadline: Duration,
    lease: Duration,
    heartbeat_limit: Duration,
    message_limit: u64,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self {
            timeout: Some(DEFAULT_TIMEOUT),
            init_method: DEFAULT_INIT_METHOD.to_owned(),
            worker_threads: DEFAULT_WORKER_THREADS,
            device_maps: BTreeMap::new(),
            devices: Vec::new(),
            transports: None,
            address: None,
            token: None,
            tls: None,
            init_deadline: DEFAULT_INIT_DEADLINE,
            lease: DEFAULT_LEASE,
            heartbeat_limit: heartbeat::DEFAULT_LIMIT,
            message_limit: Limits::default().total,
        }
    }
}

impl RpcOptions {
    /// How long a call may take (default 60 s); `None` is for ever.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Changes [`Self::timeout`].
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for zero: what can be meant by it differs, so it has to be said.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), RpcError> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(invalid(
                "RPC timeout must be positive; give none at all for calls without a deadline",
            ));
        }
        self.timeout = timeout;
        Ok(())
    }

    /// Where the store comes from: a URL (default `env://`).
    pub fn init_method(&self) -> &str {
        &self.init_method
    }

    /// Changes [`Self::init_method`].
    pub fn set_init_method(&mut self, url: impl Into<String>) {
        self.init_method = url.into();
    }

    /// How many handlers may block at a time (default 16). Completions need none of these threads.
    pub fn num_worker_threads(&self) -> u32 {
        self.worker_threads
    }

    /// Changes [`Self::num_worker_threads`].
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for zero.
    pub fn set_num_worker_threads(&mut self, threads: u32) -> Result<(), RpcError> {
        if threads == 0 {
            return Err(invalid(format!(
                "num_worker_threads must be positive, got {threads}"
            )));
        }
        self.worker_threads = threads;
        Ok(())
    }

    /// By the name of a callee: where devices of this worker appear there.
    pub fn device_maps(&self) -> &BTreeMap<String, DeviceMap> {
        &self.device_maps
    }

    /// Adds to the map for a callee.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the map is not one to one, or maps a device otherwise than before; the
    /// options stay as they are then.
    pub fn set_device_map<S: Into<Device>, T: Into<Device>>(
        &mut self,
        to: impl Into<String>,
        map: impl IntoIterator<Item = (S, T)>,
    ) -> Result<(), RpcError> {
        let map = DeviceMap::new(map).map_err(|error| invalid(error.to_string()))?;
        let held = self.device_maps.entry(to.into()).or_default();
        held.merge(&map).map_err(|error| invalid(error.to_string()))
    }

    /// The devices that this worker wants to use; empty means those that the maps name.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Replaces [`Self::devices`].
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for anything but accelerators.
    pub fn set_devices<D: Into<Device>>(
        &mut self,
        devices: impl IntoIterator<Item = D>,
    ) -> Result<(), RpcError> {
        let devices: Vec<Device> = devices.into_iter().map(Into::into).collect();
        let other = devices
            .iter()
            .find(|device| device.kind() != DeviceType::ACCELERATOR);
        if let Some(other) = other {
            return Err(invalid(format!(
                "`set_devices` expect a list of CUDA devices, but got device type {}.",
                other.kind()
            )));
        }
        self.devices = devices;
        Ok(())
    }

    /// What the group is told of this worker's devices, given how many it has.
    pub fn device_data(&self, device_count: u32) -> DeviceData {
        DeviceData {
            device_count,
            device_maps: self.device_maps.clone(),
            devices: self.devices.clone(),
        }
    }

    /// How long forming or joining the group may take (default 300 s). It is not the timeout of calls.
    pub fn init_deadline(&self) -> Duration {
        self.init_deadline
    }

    /// Changes [`Self::init_deadline`].
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for zero.
    pub fn set_init_deadline(&mut self, deadline: Duration) -> Result<(), RpcError> {
        if deadline.is_zero() {
            return Err(invalid("init_deadline must be positive"));
        }
        self.init_deadline = deadline;
        Ok(())
    }

    /// How long a member of a dynamic group may be silent before the others take it for dead (default
    /// 5 s). The same on all workers.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Changes [`Self::lease`].
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for less than 100 ms.
    pub fn set_lease(&mut self, lease: Duration) -> Result<(), RpcError> {
        if lease < SHORTEST_LEASE {
            return Err(invalid(format!(
                "lease must be at least {SHORTEST_LEASE:?}, got {lease:?}"
            )));
        }
        self.lease = lease;
        Ok(())
    }

    /// How long nothing may be heard of another host until the calls to its workers fail, and how long
    /// connecting to one may take (default 5 s). A worker that is busy or stopped is still heard of: its
    /// system answers.
    pub fn heartbeat_limit(&self) -> Duration {
        self.heartbeat_limit
    }

    /// Changes [`Self::heartbeat_limit`].
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for less than 2 s: hosts are asked once in a second.
    pub fn set_heartbeat_limit(&mut self, limit: Duration) -> Result<(), RpcError> {
        check_heartbeat_limit(limit)?;
        self.heartbeat_limit = limit;
        Ok(())
    }

    /// The most bytes of a message, with its tensors (default 4 GiB). The same on all workers.
    pub fn message_limit(&self) -> u64 {
        self.message_limit
    }

    /// Changes [`Self::message_limit`].
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for less than 64 KiB, which workers need for themselves.
    pub fn set_message_limit(&mut self, bytes: u64) -> Result<(), RpcError> {
        if bytes < SMALLEST_MESSAGE_LIMIT {
            return Err(invalid(format!(
                "message_limit must be at least {SMALLEST_MESSAGE_LIMIT} bytes, got {bytes}"
            )));
        }
        self.message_limit = bytes;
        Ok(())
    }
}

/// Whether a limit is one that can be kept.
pub(crate) fn check_heartbeat_limit(limit: Duration) -> Result<(), RpcError> {
    const SHORTEST: Duration = heartbeat::SHORTEST_LIMIT;
    if limit < SHORTEST {
        return Err(invalid(format!(
            "heartbeat_limit must be at least {SHORTEST:?}, got {limit:?}: hosts are asked once in a \
             second"
        )));
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(RpcErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests;
