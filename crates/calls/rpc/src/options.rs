//! Options of an agent, set in code or parsed from keywords.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rdzv_core::endpoint::bare_host;
use rdzv_rpc_proto::device::{Device, DeviceMap, DeviceType};
use rdzv_rpc_proto::frame::FrameLimits;
use rdzv_rpc_proto::heartbeat;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::group::{DEFAULT_LEASE, SHORTEST_LEASE};
use crate::transport::{Token, TransportOptions};
use crate::{ReferenceSettings, RpcError, Timeout};

pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Default timeout for forming or joining a group.
pub const DEFAULT_INIT_DEADLINE: Duration = Duration::from_secs(300);

/// Smallest allowed value of the message limit.
/// Batches of messages about references have at most this size.
const SMALLEST_MESSAGE_LIMIT: u64 = 64 << 10;

/// PyTorch's name for the channel that reads the memory of another process.
pub(crate) const MEMORY_CHANNEL: &str = "cma";

/// PyTorch channels that have an effect here.
const MEANT_CHANNELS: [&str; 2] = ["basic", MEMORY_CHANNEL];

/// PyTorch channels without effect: extra TCP connections, accelerator copies.
const IGNORED_CHANNELS: [&str; 5] = ["mpt_uv", "cuda_basic", "cuda_gdr", "cuda_ipc", "cuda_xth"];

/// Options by name, as another language or a file supplies them.
pub type Keywords = Map<String, Value>;

/// Options of an agent.
///
/// [`check`](Self::check) rejects invalid values; [`connect`](crate::RpcAgentBuilder::connect)
/// calls it before it uses the store.
///
/// Most fields can also be set through [`Keywords`], usually with the names of the fields. A
/// duration is a number of seconds, and a device is a number or a string. Device maps have the form
/// `{"callee": {"cuda:0": "cuda:1", "1": 0}}`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcOptions {
    /// Timeout for calls that do not set their own (default 60 s).
    ///
    /// The keyword is `rpc_timeout`; null disables the timeout.
    #[serde(rename = "rpc_timeout", deserialize_with = "call_timeout")]
    pub timeout: Timeout,
    /// URL of the store (default `env://`).
    pub init_method: String,
    /// Maximum number of blocking handlers that run at the same time (default 16).
    ///
    /// Callbacks of futures do not run on these threads. Calls of the same trace as a handler that
    /// waits for a call can exceed the maximum.
    pub num_worker_threads: u32,
    /// Device maps by callee name, from local devices to devices of the callee.
    #[serde(deserialize_with = "device_maps")]
    pub device_maps: BTreeMap<String, DeviceMap>,
    /// Accelerators of this worker; if empty, derived from the device maps.
    #[serde(deserialize_with = "devices")]
    pub devices: Vec<Device>,
    /// Transports to use, in order of preference; `None` for all.
    ///
    /// PyTorch's `ibv` is accepted beside other transports. It has no effect, and the agent logs
    /// this.
    #[serde(alias = "_transports")]
    pub transports: Option<Vec<TransportName>>,
    /// PyTorch's `_channels`; empty for all.
    ///
    /// If the list is not empty and does not contain `cma`, workers do not read large parts from
    /// each other's memory. `basic` stands for the transport itself and is always available. Other
    /// channels of PyTorch are accepted. They have no effect, and the agent logs this.
    #[serde(rename = "_channels")]
    pub channels: Vec<String>,
    /// Address at which other workers can reach this host.
    ///
    /// The default is `None`. If the application supplies a store, the agent then uses the local
    /// address of the connection to the store. Otherwise the agent uses the local address of the
    /// route to the init method's host, or to other networks. The fallback is 127.0.0.1; `env://`
    /// without `MASTER_ADDR` uses it directly.
    #[serde(deserialize_with = "address")]
    pub address: Option<IpAddr>,
    /// Token with which all workers of the job authenticate each other.
    ///
    /// The keyword takes a string of at least 16 bytes. `None` means the token in the file that
    /// `RDZV_JOB_TOKEN_FILE` specifies, or no token if the variable is not set. `rdzv run` sets
    /// this variable for the workers of a job with a token.
    #[serde(deserialize_with = "token")]
    pub token: Option<Token>,
    /// Certificate and key files for TLS over TCP.
    ///
    /// `None` means the certificates in [`transport`](Self::transport), which has none by default.
    pub tls: Option<TlsFiles>,
    /// Timeout for forming or joining the group (default 300 s).
    ///
    /// It does not apply to calls.
    #[serde(deserialize_with = "seconds")]
    pub init_deadline: Duration,
    /// Time without a lease renewal after which a dynamic group removes a member.
    ///
    /// The default is 5 s, and the minimum is 100 ms. Use the same value on all workers.
    #[serde(deserialize_with = "seconds")]
    pub lease: Duration,
    /// Maximum size of a message including its tensors, in bytes.
    ///
    /// The default is 4 GiB, and the minimum is 64 KiB. Use the same value on all workers.
    pub message_limit: u64,
    /// Further transport options; the only keyword is `heartbeat_limit`.
    ///
    /// A transport is used only if both this field and [`transports`](Self::transports) allow it.
    /// The [TLS files](Self::tls), if any, replace the certificates.
    #[serde(rename = "heartbeat_limit", deserialize_with = "heartbeat_limit")]
    pub transport: TransportOptions,
    /// Settings for remote references, such as timeouts; not a keyword.
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
            message_limit: FrameLimits::default().total,
            transport: TransportOptions::default(),
            references: ReferenceSettings::default(),
        }
    }
}

impl RpcOptions {
    /// Adds device pairs to the device map for a callee.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the map is not one-to-one, or maps a device differently from an earlier
    /// map. On error the options are unchanged.
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

    /// Checks that the agent can use all values.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for the first invalid option.
    pub fn check(&self) -> Result<(), RpcError> {
        const SHORTEST_LIMIT: Duration = heartbeat::SHORTEST_LIMIT;
        self.timeout.limit(|| None)?;
        let message = if self.num_worker_threads == 0 {
            "num_worker_threads must be positive, got 0".to_owned()
        } else if self.transport.heartbeat_limit < SHORTEST_LIMIT {
            let limit = self.transport.heartbeat_limit;
            format!(
                "heartbeat_limit must be at least {SHORTEST_LIMIT:?}, got {limit:?}: rdzv polls \
                 a host at most once a second"
            )
        } else if let Some(other) = self.other_device() {
            format!("`set_devices` expect a list of CUDA devices, but got device type {other}.")
        } else if self.transports.as_ref().is_some_and(Vec::is_empty) {
            "the list of transports is empty; omit it to use all transports that work".to_owned()
        } else if self
            .transports
            .as_ref()
            .is_some_and(|names| names.iter().all(is_foreign))
        {
            "rdzv has no transport ibv: specify shm, unix or tcp, or omit the list".to_owned()
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

    /// Returns the PyTorch names in these options that have no effect.
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

/// Transport that carries bytes between workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportName {
    /// Shared memory, between workers on one host.
    Shm,
    /// Unix sockets, between workers on one host.
    Unix,
    /// TCP; PyTorch calls it `uv`.
    #[serde(alias = "uv")]
    Tcp,
    /// InfiniBand in PyTorch; not supported.
    ///
    /// The agent uses the next transport in the list instead.
    Ibv,
}

/// PEM files with which workers authenticate each other over TCP.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Certificate of this worker.
    pub certificate: PathBuf,
    /// Private key of this worker.
    pub key: PathBuf,
    /// Certificates of the authorities that sign other workers' certificates.
    pub authorities: PathBuf,
}

impl RpcOptions {
    /// Creates options from the defaults, overridden by the keywords.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an unknown keyword, or for an invalid value.
    pub fn from_words(words: &Keywords) -> Result<Self, RpcError> {
        from_words(words)
    }
}

/// Parses the options of any backend.
///
/// Each keyword is first parsed separately, so that an error can name the keyword.
pub(crate) fn from_words<T: DeserializeOwned>(words: &Keywords) -> Result<T, RpcError> {
    for (word, value) in words {
        let alone = Keywords::from_iter([(word.clone(), value.clone())]);
        T::deserialize(Value::Object(alone)).map_err(|error| {
            let value = match word.as_str() {
                // The error must not show a secret, even an invalid one.
                "token" => "this value".to_owned(),
                _ => value.to_string(),
            };
            RpcError::invalid(format!("the option {word} cannot be {value}: {error}"))
        })?;
    }
    T::deserialize(Value::Object(words.clone()))
        .map_err(|error| RpcError::invalid(error.to_string()))
}

/// Device as users write it: a number or a string.
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

/// Parses an address, which may have the brackets of IPv6.
fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IpAddr>, D::Error> {
    let word = Option::<String>::deserialize(from)?;
    let address = word.map(|word| bare_host(&word).parse().map_err(D::Error::custom));
    address.transpose()
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

/// Parses the timeout for calls in seconds, with PyTorch's error text.
fn call_timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Timeout, D::Error> {
    match Option::<f64>::deserialize(from)? {
        Some(timeout) if timeout < 0.0 => Err(D::Error::custom("RPC Timeout must be non-negative")),
        Some(timeout) => Ok(duration(timeout).map_err(D::Error::custom)?.into()),
        None => Ok(Timeout::Never),
    }
}

fn token<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Token>, D::Error> {
    // The error must not contain the value.
    let text = Value::deserialize(from)?;
    match text.as_str() {
        Some(text) => Token::new(text.as_bytes())
            .map(Some)
            .map_err(D::Error::custom),
        None if text.is_null() => Ok(None),
        None => Err(D::Error::custom("it must be a string")),
    }
}

fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    duration(f64::deserialize(from)?).map_err(D::Error::custom)
}

fn heartbeat_limit<'de, D: Deserializer<'de>>(from: D) -> Result<TransportOptions, D::Error> {
    Ok(TransportOptions {
        heartbeat_limit: seconds(from)?,
        ..TransportOptions::default()
    })
}

/// Converts seconds to a duration, without rounding a positive time to zero.
fn duration(seconds: f64) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_micros(1);
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if time >= SHORTEST || seconds == 0.0 => Ok(time),
        Ok(_) => Err(format!("{seconds} s is shorter than 1 us")),
        Err(_) => Err(format!("{seconds} s is not a valid duration")),
    }
}

#[cfg(test)]
mod tests;
