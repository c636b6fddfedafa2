//! The options of the built-in backend, in a program or as words and values.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rdzv_rpc_proto::device::{Device, DeviceData, DeviceMap, DeviceType};
use rdzv_rpc_proto::frame::Limits;
use rdzv_rpc_proto::heartbeat;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::RpcError;
use crate::group::{DEFAULT_LEASE, SHORTEST_LEASE};

/// How long forming or joining a group may take, if nothing else is said.
pub const DEFAULT_INIT_DEADLINE: Duration = Duration::from_secs(300);

/// Workers tell one another about references and groups in messages of this size.
const SMALLEST_MESSAGE_LIMIT: u64 = 64 << 10;

/// Fewer bytes could be tried out.
const SHORTEST_TOKEN: usize = 16;

/// The channel of PyTorch that reads the memory of another process.
pub(crate) const MEMORY_CHANNEL: &str = "cma";

/// The channels of PyTorch that choose something here.
const MEANT_CHANNELS: [&str; 2] = ["basic", MEMORY_CHANNEL];

/// The other channels that PyTorch knows: more TCP connections, and copies between accelerators.
const IGNORED_CHANNELS: [&str; 5] = ["mpt_uv", "cuda_basic", "cuda_gdr", "cuda_ipc", "cuda_xth"];

/// Options by name, as a program in another language or a file gives them.
pub type Keywords = Map<String, Value>;

/// The options of the built-in backend. [`check`](Self::check) refuses values that cannot be
/// honoured; a backend calls it before it uses them.
///
/// The fields have their own names as [`Keywords`]. Durations are seconds, a device is a number or
/// a text, and device maps are `{"callee": {"cuda:0": "cuda:1", "1": 0}}`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcOptions {
    /// Time limit of a call (default 60 s), `rpc_timeout` as a word; `None` sets no limit.
    #[serde(rename = "rpc_timeout", deserialize_with = "call_timeout")]
    pub timeout: Option<Duration>,
    /// URL of the store (default `env://`).
    pub init_method: String,
    /// Number of handlers that may block at a time (default 16). Completions need none of these
    /// threads.
    pub num_worker_threads: u32,
    /// By the name of a callee: where devices of this worker appear there.
    #[serde(deserialize_with = "device_maps")]
    pub device_maps: BTreeMap<String, DeviceMap>,
    /// The accelerators that this worker wants to use; empty means those that the maps name.
    #[serde(deserialize_with = "devices")]
    pub devices: Vec<Device>,
    /// The transports that may be used, the preferred one first; `None` is all. PyTorch's `ibv` is
    /// accepted beside others, and ignored with a line in the log.
    #[serde(alias = "_transports")]
    pub transports: Option<Vec<TransportName>>,
    /// PyTorch's `_channels`; empty is all. A list without `cma` keeps workers from reading large parts
    /// out of one another's memory. `basic` is always there: bytes go where the transport goes. The
    /// others that PyTorch knows are accepted, and ignored with a line in the log.
    #[serde(rename = "_channels")]
    pub channels: Vec<String>,
    /// The address of this host that the other workers can reach; `None` is found out.
    pub address: Option<IpAddr>,
    /// The token that all workers of the job show one another, of at least 16 bytes.
    pub token: Option<Secret>,
    /// The files for TLS over TCP, if it is to be used.
    pub tls: Option<TlsFiles>,
    /// Time limit for forming or joining the group (default 300 s). It is not the timeout of calls.
    #[serde(deserialize_with = "seconds")]
    pub init_deadline: Duration,
    /// How long a member of a dynamic group may be silent before the others take it for dead (default
    /// 5 s, at least 100 ms). The same on all workers.
    #[serde(deserialize_with = "seconds")]
    pub lease: Duration,
    /// How long nothing may be heard of another host until the calls to its workers fail, and how long
    /// connecting to one may take (default 5 s, at least 2 s). A worker that is busy or stopped is still
    /// heard of: its system answers.
    #[serde(deserialize_with = "seconds")]
    pub heartbeat_limit: Duration,
    /// The most bytes of a message, with its tensors (default 4 GiB, at least 64 KiB). The same on all
    /// workers.
    pub message_limit: u64,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self {
            timeout: Some(Duration::from_secs(60)),
            init_method: "env://".to_owned(),
            num_worker_threads: 16,
            device_maps: BTreeMap::new(),
            devices: Vec::new(),
            transports: None,
            channels: Vec::new(),
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
        let map = DeviceMap::new(map).map_err(|error| RpcError::invalid(error.to_string()))?;
        let held = self.device_maps.entry(to.into()).or_default();
        held.merge(&map)
            .map_err(|error| RpcError::invalid(error.to_string()))
    }

    /// What the group is told of this worker's devices, given how many it has.
    pub fn device_data(&self, device_count: u32) -> DeviceData {
        DeviceData {
            device_count,
            device_maps: self.device_maps.clone(),
            devices: self.devices.clone(),
        }
    }

    /// Refuses values that cannot be honoured.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with the name of the option and the remedy.
    pub fn check(&self) -> Result<(), RpcError> {
        check_worker_threads(self.num_worker_threads as usize)?;
        check_heartbeat_limit(self.heartbeat_limit)?;
        let message = if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            "RPC timeout must be positive; give none at all for calls without a deadline".to_owned()
        } else if let Some(other) = self.other_device() {
            format!("`set_devices` expect a list of CUDA devices, but got device type {other}.")
        } else if self.transports.as_ref().is_some_and(Vec::is_empty) {
            "the list of transports is empty; give none at all to use every one that works"
                .to_owned()
        } else if self
            .transports
            .as_ref()
            .is_some_and(|names| names.iter().all(is_foreign))
        {
            "the transport ibv does not exist here: name shm, unix or tcp, or none at all"
                .to_owned()
        } else if let Some(other) = self.channels.iter().find(|name| !is_channel(name)) {
            format!("Unknown channel: {other}")
        } else if let Some(bytes) = self.token_length().filter(|bytes| *bytes < SHORTEST_TOKEN) {
            format!(
                "a job token of {bytes} bytes can be guessed: take {SHORTEST_TOKEN} random bytes or \
                 more"
            )
        } else if self.init_deadline.is_zero() {
            "init_deadline must be positive".to_owned()
        } else if self.lease < SHORTEST_LEASE {
            let lease = self.lease;
            format!("lease must be at least {SHORTEST_LEASE:?}, got {lease:?}")
        } else if self.message_limit < SMALLEST_MESSAGE_LIMIT {
            let bytes = self.message_limit;
            format!("message_limit must be at least {SMALLEST_MESSAGE_LIMIT} bytes, got {bytes}")
        } else {
            return Ok(());
        };
        Err(RpcError::invalid(message))
    }

    /// The names of PyTorch's in these options that have no meaning here.
    pub(crate) fn ignored(&self) -> Vec<&str> {
        let transports = self.transports.iter().flatten();
        let foreign = transports.filter(|name| is_foreign(name)).map(|_| "ibv");
        let channels = self.channels.iter().map(String::as_str);
        let channels = channels.filter(|name| !MEANT_CHANNELS.contains(name));
        foreign.chain(channels).collect()
    }

    fn other_device(&self) -> Option<DeviceType> {
        let mut kinds = self.devices.iter().map(|device| device.kind());
        kinds.find(|kind| *kind != DeviceType::ACCELERATOR)
    }

    fn token_length(&self) -> Option<usize> {
        self.token.as_ref().map(|token| token.0.len())
    }
}

fn is_foreign(name: &TransportName) -> bool {
    *name == TransportName::Ibv
}

fn is_channel(name: &str) -> bool {
    MEANT_CHANNELS.contains(&name) || IGNORED_CHANNELS.contains(&name)
}

/// A way for bytes from one worker to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportName {
    /// Shared memory, on one host.
    Shm,
    /// Unix sockets, on one host.
    Unix,
    /// TCP, `uv` in PyTorch.
    #[serde(alias = "uv")]
    Tcp,
    /// InfiniBand, in PyTorch. There is none here; what stands after it in the list is used.
    Ibv,
}

/// The token of a job: a text that only its workers know. It is never printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Secret(String);

impl Secret {
    /// This text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

/// The files by which workers prove to one another who they are, over TCP. All are PEM.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate of this worker.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificates of those who may have signed the others'.
    pub authorities: PathBuf,
}

/// Reads options of any backend. Each word is read alone first, so that the error can name it.
pub(crate) fn from_words<T: DeserializeOwned>(words: &Keywords) -> Result<T, RpcError> {
    for (word, value) in words {
        let alone = Keywords::from_iter([(word.clone(), value.clone())]);
        T::deserialize(Value::Object(alone)).map_err(|error| {
            RpcError::invalid(format!("the option {word} cannot be {value}: {error}"))
        })?;
    }
    T::deserialize(Value::Object(words.clone()))
        .map_err(|error| RpcError::invalid(error.to_string()))
}

/// A device as it is written: a number or a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum DeviceWord {
    Index(u32),
    Text(String),
}

impl DeviceWord {
    fn device<E: serde::de::Error>(self) -> Result<Device, E> {
        match self {
            Self::Index(index) => Ok(Device::from(index)),
            Self::Text(text) => text.parse().map_err(E::custom),
        }
    }
}

fn devices<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Device>, D::Error> {
    let words = Vec::<DeviceWord>::deserialize(from)?;
    words.into_iter().map(DeviceWord::device).collect()
}

fn device_maps<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, DeviceMap>, D::Error> {
    let words = BTreeMap::<String, BTreeMap<Device, DeviceWord>>::deserialize(from)?;
    let map = |pairs: BTreeMap<Device, DeviceWord>| {
        let pairs = pairs.into_iter();
        let pairs: Result<Vec<_>, D::Error> = pairs
            .map(|(source, target)| Ok((source, target.device()?)))
            .collect();
        DeviceMap::new(pairs?).map_err(D::Error::custom)
    };
    let maps = words.into_iter();
    maps.map(|(to, pairs)| Ok((to, map(pairs)?))).collect()
}

/// The timeout of calls out of seconds, with PyTorch's text.
fn call_timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    match Option::<f64>::deserialize(from)? {
        Some(timeout) if timeout < 0.0 => Err(D::Error::custom("RPC Timeout must be non-negative")),
        Some(timeout) => duration(timeout).map(Some).map_err(D::Error::custom),
        None => Ok(None),
    }
}

fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    duration(f64::deserialize(from)?).map_err(D::Error::custom)
}

/// A time out of seconds; what is shorter than a microsecond, but not zero, is not made zero.
fn duration(seconds: f64) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_micros(1);
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if time >= SHORTEST || seconds == 0.0 => Ok(time),
        Ok(_) => Err(format!("{seconds} s is shorter than 1 us")),
        Err(_) => Err(format!("{seconds} s is no time")),
    }
}

/// Whether blocking functions can run at all.
pub(crate) fn check_worker_threads(threads: usize) -> Result<(), RpcError> {
    if threads == 0 {
        return Err(RpcError::invalid(
            "num_worker_threads must be positive, got 0",
        ));
    }
    Ok(())
}

/// Whether a limit is one that can be kept.
pub(crate) fn check_heartbeat_limit(limit: Duration) -> Result<(), RpcError> {
    const SHORTEST: Duration = heartbeat::SHORTEST_LIMIT;
    if limit < SHORTEST {
        return Err(RpcError::invalid(format!(
            "heartbeat_limit must be at least {SHORTEST:?}, got {limit:?}: hosts are asked once in a \
             second"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
