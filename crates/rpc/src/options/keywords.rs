//! Options as words and values, as a program in another language or a file gives them.

use std::time::Duration;

use rdzv_rpc_proto::device::Device;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{DEFAULT_INIT_METHOD, DEFAULT_TIMEOUT, RpcOptions, Secret, TlsFiles, invalid};
use crate::RpcError;

/// Options by name.
pub type Keywords = Map<String, Value>;

/// What options are made of: two that every backend has, and those of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct OptionArguments {
    /// How long a call may take, in seconds (default 60); `None` is for ever.
    pub rpc_timeout: Option<f64>,
    /// Where the store comes from (default `env://`).
    pub init_method: String,
    /// Everything else.
    pub keywords: Keywords,
}

impl Default for OptionArguments {
    fn default() -> Self {
        Self {
            rpc_timeout: Some(DEFAULT_TIMEOUT.as_secs_f64()),
            init_method: DEFAULT_INIT_METHOD.to_owned(),
            keywords: Keywords::new(),
        }
    }
}

/// What the built-in backend knows, besides the reference's spellings of two of them.
const KNOWN: [&str; 11] = [
    "num_worker_threads",
    "device_maps",
    "devices",
    "transports",
    "address",
    "token",
    "tls",
    "init_deadline",
    "lease",
    "heartbeat_limit",
    "message_limit",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsWords {
    certificate: String,
    key: String,
    authorities: String,
}

/// A device as it is written: a number or a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum DeviceWord {
    Index(u32),
    Text(String),
}

impl DeviceWord {
    fn device(&self) -> Result<Device, RpcError> {
        match self {
            Self::Index(index) => Ok(Device::from(*index)),
            Self::Text(text) => device(text),
        }
    }
}

fn device(text: &str) -> Result<Device, RpcError> {
    text.parse().map_err(|error| invalid(format!("{error}")))
}

impl RpcOptions {
    /// Options out of words. Nothing that is given is ignored.
    ///
    /// | word | value |
    /// |---|---|
    /// | `num_worker_threads` | a number |
    /// | `device_maps` | `{"callee": {"cuda:0": "cuda:1", "1": 0}}` |
    /// | `devices` | `[0, "cuda:1"]` |
    /// | `transports`, `_transports` | `["shm", "unix", "tcp"]` |
    /// | `_channels` | `["basic"]`, the only one there is: bytes go where the transport goes |
    /// | `address` | an address of this host |
    /// | `token` | a text |
    /// | `tls` | `{"certificate": …, "key": …, "authorities": …}`, paths |
    /// | `init_deadline`, `lease`, `heartbeat_limit` | seconds |
    /// | `message_limit` | bytes |
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, for what the setters refuse, for a value that is none, and for a word that
    /// is not known.
    pub fn construct(arguments: &OptionArguments) -> Result<Self, RpcError> {
        let mut options = Self::default();
        options.set_timeout(call_timeout(arguments.rpc_timeout)?)?;
        options.set_init_method(&arguments.init_method);
        for (word, value) in &arguments.keywords {
            if !value.is_null() {
                options.set_word(word, value)?;
            } else if !is_known(word) {
                return Err(unknown(word));
            }
        }
        Ok(options)
    }

    fn set_word(&mut self, word: &str, value: &Value) -> Result<(), RpcError> {
        match word {
            "num_worker_threads" => {
                let threads: i64 = read(word, value)?;
                let positive = u32::try_from(threads).map_err(|_| {
                    invalid(format!(
                        "num_worker_threads must be positive, got {threads}"
                    ))
                })?;
                self.set_num_worker_threads(positive)
            }
            "device_maps" => {
                let maps: Map<String, Value> = read(word, value)?;
                for (to, map) in &maps {
                    let map: Map<String, Value> = read(word, map)?;
                    let mut pairs = Vec::new();
                    for (source, target) in &map {
                        let target: DeviceWord = read(word, target)?;
                        pairs.push((device(source)?, target.device()?));
                    }
                    self.set_device_map(to, pairs)?;
                }
                Ok(())
            }
            "devices" => {
                let devices: Vec<DeviceWord> = read(word, value)?;
                let devices: Result<Vec<Device>, _> =
                    devices.iter().map(DeviceWord::device).collect();
                self.set_devices(devices?)
            }
            "transports" | "_transports" => {
                let names: Vec<String> = read(word, value)?;
                let names: Result<Vec<_>, _> = names.iter().map(|name| name.parse()).collect();
                self.set_transports(Some(names?))
            }
            "_channels" => {
                let names: Vec<String> = read(word, value)?;
                match names.iter().find(|name| *name != "basic") {
                    Some(other) => Err(invalid(format!("Unknown channel: {other}"))),
                    None => Ok(()),
                }
            }
            "address" => {
                self.set_address(Some(read(word, value)?));
                Ok(())
            }
            "token" => self.set_token(Some(Secret::new(read::<String>(word, value)?))),
            "tls" => {
                let files: TlsWords = read(word, value)?;
                self.set_tls(Some(TlsFiles {
                    certificate: files.certificate.into(),
                    key: files.key.into(),
                    authorities: files.authorities.into(),
                }));
                Ok(())
            }
            "init_deadline" => self.set_init_deadline(seconds(word, read(word, value)?)?),
            "lease" => self.set_lease(seconds(word, read(word, value)?)?),
            "heartbeat_limit" => self.set_heartbeat_limit(seconds(word, read(word, value)?)?),
            "message_limit" => self.set_message_limit(read(word, value)?),
            _ => Err(unknown(word)),
        }
    }
}

fn is_known(word: &str) -> bool {
    KNOWN.contains(&word) || word == "_transports" || word == "_channels"
}

fn unknown(word: &str) -> RpcError {
    invalid(format!(
        "the RPC backend has no option {word}; it has {}",
        KNOWN.join(", ")
    ))
}

fn read<T: DeserializeOwned>(word: &str, value: &Value) -> Result<T, RpcError> {
    serde_json::from_value(value.clone())
        .map_err(|error| invalid(format!("the option {word} cannot be {value}: {error}")))
}

/// The timeout of calls out of seconds, in the reference's words.
fn call_timeout(timeout: Option<f64>) -> Result<Option<Duration>, RpcError> {
    match timeout {
        Some(timeout) if timeout < 0.0 => Err(invalid("RPC Timeout must be non-negative")),
        Some(timeout) => seconds("rpc_timeout", timeout).map(Some),
        None => Ok(None),
    }
}

/// A time out of seconds; what is shorter than a microsecond, but not zero, is not made zero.
fn seconds(word: &str, value: f64) -> Result<Duration, RpcError> {
    const SHORTEST: Duration = Duration::from_micros(1);
    match Duration::try_from_secs_f64(value) {
        Ok(time) if time >= SHORTEST || value == 0.0 => Ok(time),
        Ok(_) => Err(invalid(format!("{word} is shorter than 1 us: {value} s"))),
        Err(_) => Err(invalid(format!("{word} is no time: {value} s"))),
    }
}
