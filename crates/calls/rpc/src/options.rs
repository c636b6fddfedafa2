//! The options of an agent, in a program or as words and values.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rdzv_rpc_proto::device::{Device, DeviceMap, DeviceType};
use rdzv_rpc_proto::frame::Limits;
use rdzv_rpc_proto::heartbeat;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::group::{DEFAULT_LEASE, SHORTEST_LEASE};
use crate::transport::{Token, TransportOptions};
use crate::{ReferenceSettings, RpcError, Timeout};

/// How long a call may take, if nothing else is said.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long forming or joining a group may take, if nothing else is said.
pub const DEFAULT_INIT_DEADLINE: Duration = Duration::from_secs(300);

/// Workers tell one another about references and groups in messages of this size.
const SMALLEST_MESSAGE_LIMIT: u64 = 64 << 10;

/// The channel of PyTorch that reads the memory of another process.
pub(crate) const MEMORY_CHANNEL: &str = "cma";

/// The channels of PyTorch that choose something here.
const MEANT_CHANNELS: [&str; 2] = ["basic", MEMORY_CHANNEL];

/// The other channels that PyTorch knows: more TCP connections, and copies between accelerators.
const IGNORED_CHANNELS: [&str; 5] = ["mpt_uv", "cuda_basic", "cuda_gdr", "cuda_ipc", "cuda_xth"];

/// Options by name, as a program in another language or a file gives them.
pub type Keywords = Map<String, Value>;

/// The options of an agent. [`check`](Self::check), which [`connect`](crate::RpcAgentBuilder::connect) calls
/// first, refuses values that cannot be honoured.
///
/// Most fields can be given as [`Keywords`], under their own names. Durations are seconds, a device
/// is a number or a text, and device maps are `{"callee": {"cuda:0": "cuda:1", "1": 0}}`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcOptions {
    /// Time limit of a call that does not say so itself (default 60 s), `rpc_timeout` as a word, where null
    /// sets no limit.
    #[serde(rename = "rpc_timeout", deserialize_with = "call_timeout")]
    pub timeout: Timeout,
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
    /// The address of this host that the other workers can reach. `None` is the one by which it reaches the
    /// store that it brings along, or the host of the init method; 127.0.0.1 with `env://` and without
    /// `MASTER_ADDR`, and with a store that has no connection.
    pub address: Option<IpAddr>,
    /// The token that all workers of the job prove to one another that they have; as a word a text of at least
    /// 16 bytes. `None` is the one in the file that RDZV_JOB_TOKEN_FILE names, as agents set it for the workers
    /// of a job with a token; else no token.
    #[serde(deserialize_with = "token")]
    pub token: Option<Token>,
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
    /// How bytes travel, beyond what the fields above say: a transport is used if it is turned on here and
    /// there; address and heartbeat limit are those above, and so are the files for TLS, if given. No word.
    #[serde(skip)]
    pub transport: TransportOptions,
    /// How patient remote references are with workers that cannot be reached, and the like. No word.
    #[serde(skip)]
    pub references: ReferenceSettings,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self {
            timeout: Timeout::Default,
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
            transport: TransportOptions::default(),
            references: ReferenceSettings::default(),
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

    /// Refuses values that cannot be honoured.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with the name of the option and the remedy.
    pub fn check(&self) -> Result<(), RpcError> {
        const SHORTEST_LIMIT: Duration = heartbeat::SHORTEST_LIMIT;
        self.timeout.limit(|| None)?;
        let message = if self.num_worker_threads == 0 {
            "num_worker_threads must be positive, got 0".to_owned()
        } else if self.heartbeat_limit < SHORTEST_LIMIT {
            let limit = self.heartbeat_limit;
            format!(
                "heartbeat_limit must be at least {SHORTEST_LIMIT:?}, got {limit:?}: hosts are asked \
                 once in a second"
            )
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

impl RpcOptions {
    /// The defaults, and what the words say.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a word that is not known and a value that it cannot have.
    pub fn from_words(words: &Keywords) -> Result<Self, RpcError> {
        from_words(words)
    }
}

/// Reads options of any backend. Each word is read alone first, so that the error can name it.
pub(crate) fn from_words<T: DeserializeOwned>(words: &Keywords) -> Result<T, RpcError> {
    for (word, value) in words {
        let alone = Keywords::from_iter([(word.clone(), value.clone())]);
        T::deserialize(Value::Object(alone)).map_err(|error| {
            let value = match word.as_str() {
                // A secret is not shown, whatever is wrong with it.
                "token" => "this value".to_owned(),
                _ => value.to_string(),
            };
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
fn call_timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Timeout, D::Error> {
    match Option::<f64>::deserialize(from)? {
        Some(timeout) if timeout < 0.0 => Err(D::Error::custom("RPC Timeout must be non-negative")),
        Some(timeout) => Ok(duration(timeout).map_err(D::Error::custom)?.into()),
        None => Ok(Timeout::Never),
    }
}

fn token<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Token>, D::Error> {
    // Without the value in the error.
    let text = Value::deserialize(from)?;
    match text.as_str() {
        Some(text) => Token::new(text.as_bytes())
            .map(Some)
            .map_err(D::Error::custom),
        None if text.is_null() => Ok(None),
        None => Err(D::Error::custom("it has to be a text")),
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

#[cfg(test)]
mod tests;
