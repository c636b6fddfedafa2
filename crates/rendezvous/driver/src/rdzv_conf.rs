//! Options of `--rdzv-conf`, parsed once and checked with torchelastic's texts.
//!
//! Every dynamic rendezvous has these options; a backend may have more.
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `join_timeout` | 600 s | time limit to join a round |
//! | `last_call_timeout` | 30 s | time to wait for more nodes once there are enough; 0 is allowed |
//! | `close_timeout` | 30 s | time limit to close the run, or to leave a shared state |
//! | `heartbeat_timeout` | 5 s | checked, but not used |
//! | `keep_alive_interval` | 5 s | time between heartbeats |
//! | `keep_alive_max_attempt` | 3 | missed heartbeats after which a node is lost |
//! | `store_max_memory` | 4GiB | memory limit of each store that this agent hosts |
//! | `cas_backoff_max_seconds` | 0 s | longest pause after a lost write; with 0, rdzv chooses the pauses |

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_rendezvous_proto::Settings;
use rdzv_store::{Limits, parse_size};

use crate::RendezvousError;

/// Names of the options above.
pub(crate) const NAMES: [&str; 8] = [
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "cas_backoff_max_seconds",
    "store_max_memory",
];

/// Options that launchers add for all backends.
pub(crate) const OF_LAUNCHER: [&str; 2] = ["timeout", "rank"];

/// Options of a rendezvous, as in `--rdzv-conf`.
///
/// The backend defines their names and values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RendezvousConfig {
    options: BTreeMap<String, String>,
}

impl From<BTreeMap<String, String>> for RendezvousConfig {
    fn from(options: BTreeMap<String, String>) -> Self {
        Self { options }
    }
}

impl RendezvousConfig {
    /// Parses options written as `key=value,key=value`.
    ///
    /// A blank text means no options. A trailing comma is an error.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if an option has no name or no value.
    pub fn parse(text: &str) -> Result<Self, RendezvousError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        text.split(',')
            .map(|option| {
                let (key, value) = option.split_once('=').unwrap_or((option, ""));
                let (key, value) = (key.trim(), value.trim());
                if key.is_empty() {
                    return Err(RendezvousError::argument(
                        "The rendezvous configuration string must be in format \
                         <key1>=<value1>,...,<keyN>=<valueN>.",
                    ));
                }
                if value.is_empty() {
                    return Err(RendezvousError::argument(format!(
                        "The rendezvous configuration option '{key}' must have a value specified."
                    )));
                }
                Ok((key.to_owned(), value.to_owned()))
            })
            .collect::<Result<BTreeMap<_, _>, _>>()
            .map(Self::from)
    }

    /// `true` if there are no options.
    pub fn is_empty(&self) -> bool {
        self.options.is_empty()
    }

    /// Returns the options as `key=value`, in the order of their keys.
    pub fn pairs(&self) -> Vec<String> {
        let pairs = self.options.iter();
        pairs.map(|(key, value)| format!("{key}={value}")).collect()
    }

    /// Returns the text of an option.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// Returns an option as a boolean.
    ///
    /// The accepted words are `1 true t yes y` and `0 false f no n`, in any case.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the text is none of these words.
    pub fn get_as_bool(&self, key: &str) -> Result<Option<bool>, RendezvousError> {
        let Some(text) = self.get(key) else {
            return Ok(None);
        };
        match text.to_lowercase().as_str() {
            "1" | "true" | "t" | "yes" | "y" => Ok(Some(true)),
            "0" | "false" | "f" | "no" | "n" => Ok(Some(false)),
            _ => Err(RendezvousError::argument(format!(
                "The rendezvous configuration option '{key}' does not represent a valid boolean \
                 value."
            ))),
        }
    }

    /// Returns an option as an integer.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the text is not an integer.
    pub fn get_as_int(&self, key: &str) -> Result<Option<i64>, RendezvousError> {
        let Some(text) = self.get(key) else {
            return Ok(None);
        };
        text.trim().parse().map(Some).map_err(|_| {
            RendezvousError::argument(format!(
                "The rendezvous configuration option '{key}' does not represent a valid integer \
                 value."
            ))
        })
    }

    /// Reads the options of a dynamic rendezvous.
    ///
    /// Unknown options are ignored, as in torchelastic; [`Self::unknown`] finds them.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] names the first option whose value is invalid.
    pub fn settings(&self, min_nodes: u32, max_nodes: u32) -> Result<Settings, RendezvousError> {
        let defaults = Settings::new(min_nodes, max_nodes);
        let timeout = |name: &str, least: i64, default: Duration| {
            let option = format!("{name}_timeout");
            let Some(seconds) = self.get_as_int(&option)? else {
                return Ok(default);
            };
            match u64::try_from(seconds) {
                Ok(given) if seconds >= least => Ok(Duration::from_secs(given)),
                _ => Err(RendezvousError::argument(format!(
                    "The {name} timeout ({}) must be positive.",
                    as_shown_by_torchelastic(seconds)
                ))),
            }
        };
        let positive = |option: &str, default: u64| match self.get_as_int(option)? {
            None => Ok(default),
            Some(given @ 1..) => Ok(given.unsigned_abs()),
            Some(given) => Err(RendezvousError::argument(format!(
                "The rendezvous configuration option '{option}' must be greater than zero, but was \
                 {given}."
            ))),
        };
        let attempts = u64::from(defaults.keep_alive_max_attempt);
        let attempts = positive("keep_alive_max_attempt", attempts)?;
        let interval = defaults.keep_alive_interval.as_secs();
        timeout("heartbeat", 1, Duration::ZERO)?;
        Ok(Settings {
            join_timeout: timeout("join", 1, defaults.join_timeout)?,
            last_call_timeout: timeout("last_call", 0, defaults.last_call_timeout)?,
            close_timeout: timeout("close", 1, defaults.close_timeout)?,
            keep_alive_interval: Duration::from_secs(positive("keep_alive_interval", interval)?),
            keep_alive_max_attempt: u32::try_from(attempts).unwrap_or(u32::MAX),
            cas_backoff_max: self.backoff()?,
            ..defaults
        })
    }

    /// Returns the limits of the stores that this agent hosts.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if `store_max_memory` is not a size.
    pub fn store_limits(&self) -> Result<Limits, RendezvousError> {
        let (option, mut limits) = ("store_max_memory", Limits::default());
        if let Some(text) = self.get(option) {
            limits.max_memory_bytes = parse_size(text).map_err(|error| {
                RendezvousError::argument(format!("{option}('{text}') is not a size: {error}."))
            })?;
        }
        Ok(limits)
    }

    /// Returns the options whose names are not in `known`. They have no effect.
    pub fn unknown(&self, known: &[&str]) -> Vec<&str> {
        let names = self.options.keys().map(String::as_str);
        names.filter(|name| !known.contains(name)).collect()
    }

    fn backoff(&self) -> Result<Duration, RendezvousError> {
        let option = "cas_backoff_max_seconds";
        let Some(text) = self.get(option) else {
            return Ok(Duration::ZERO);
        };
        let seconds: f64 = text.trim().parse().map_err(|_| {
            RendezvousError::argument(format!("{option}('{text}') is not a valid float value."))
        })?;
        Duration::try_from_secs_f64(seconds).map_err(|_| {
            RendezvousError::argument(format!(
                "{option} ({text}) must be finite and non-negative."
            ))
        })
    }
}

/// Formats seconds as days, hours, minutes and seconds, as torchelastic does.
fn as_shown_by_torchelastic(seconds: i64) -> String {
    const DAY: i64 = 24 * 60 * 60;
    let (days, rest) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let clock = format!("{}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    match days {
        0 => clock,
        1 | -1 => format!("{days} day, {clock}"),
        _ => format!("{days} days, {clock}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdzv_rendezvous_proto::FencePolicy;

    fn with(config: &str) -> RendezvousConfig {
        RendezvousConfig::parse(config).unwrap()
    }

    #[test]
    fn options_are_split_at_the_first_equals_sign() {
        let parameters = with(" a = 1 , b=x=y ");
        assert_eq!(parameters.get("a"), Some("1"));
        assert_eq!(parameters.get("b"), Some("x=y"));
        assert_eq!(parameters.get("c"), None);
        assert!(RendezvousConfig::parse(" ").unwrap().is_empty());
    }

    #[test]
    fn malformed_options_are_refused_with_the_texts_of_the_reference() {
        let text = |config| RendezvousConfig::parse(config).unwrap_err().to_string();
        let format = "The rendezvous configuration string must be in format \
                      <key1>=<value1>,...,<keyN>=<valueN>.";
        assert_eq!(text("a=1,"), format);
        assert_eq!(text("=1"), format);
        for config in ["a", "a=", "a= "] {
            assert_eq!(
                text(config),
                "The rendezvous configuration option 'a' must have a value specified."
            );
        }
    }

    #[test]
    fn options_have_types() {
        let parameters = with("yes=T,no=No,number= 42,word=apple,float=1.5");
        assert_eq!(parameters.get_as_bool("yes").unwrap(), Some(true));
        assert_eq!(parameters.get_as_bool("no").unwrap(), Some(false));
        assert_eq!(parameters.get_as_bool("absent").unwrap(), None);
        assert_eq!(parameters.get_as_int("number").unwrap(), Some(42));
        assert_eq!(parameters.get_as_int("absent").unwrap(), None);
        assert_eq!(
            parameters.get_as_bool("word").unwrap_err().to_string(),
            "The rendezvous configuration option 'word' does not represent a valid boolean value."
        );
        assert_eq!(
            parameters.get_as_int("float").unwrap_err().to_string(),
            "The rendezvous configuration option 'float' does not represent a valid integer value."
        );
    }

    fn read(config: &str) -> Result<Settings, String> {
        let config = RendezvousConfig::parse(config).unwrap();
        config.settings(2, 3).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_given_is_as_in_the_reference() {
        let seconds = Duration::from_secs;
        let defaults = Settings {
            min_nodes: 2,
            max_nodes: 3,
            join_timeout: seconds(600),
            last_call_timeout: seconds(30),
            master_timeout: seconds(60),
            close_timeout: seconds(30),
            keep_alive_interval: seconds(5),
            keep_alive_max_attempt: 3,
            cas_backoff_max: Duration::ZERO,
            node_timeout: Duration::from_secs(3),
            fence: FencePolicy::Unsaid,
            sorts_ranks: false,
        };
        assert_eq!(read("").unwrap(), defaults);
        assert_eq!(Settings::new(2, 3), defaults);
        assert_eq!(read("timeout=900,zeus=1").unwrap(), Settings::new(2, 3));
    }

    #[test]
    fn every_option_is_read() {
        let settings = read(
            "join_timeout=1,last_call_timeout=2,close_timeout=3,heartbeat_timeout=4,\
             keep_alive_interval=6,keep_alive_max_attempt=7,cas_backoff_max_seconds=0.5",
        );
        let seconds = Duration::from_secs;
        assert_eq!(
            settings.unwrap(),
            Settings {
                min_nodes: 2,
                max_nodes: 3,
                join_timeout: seconds(1),
                last_call_timeout: seconds(2),
                master_timeout: seconds(60),
                close_timeout: seconds(3),
                keep_alive_interval: seconds(6),
                keep_alive_max_attempt: 7,
                cas_backoff_max: Duration::from_millis(500),
                node_timeout: Duration::from_secs(3),
                fence: FencePolicy::Unsaid,
                sorts_ranks: false,
            }
        );
        assert_eq!(
            read("last_call_timeout=0").unwrap().last_call_timeout,
            Duration::ZERO,
            "a job that needs no more nodes need not wait for any"
        );
    }

    #[test]
    fn impossible_values_are_refused_with_the_texts_of_the_reference() {
        for (config, text) in [
            (
                "join_timeout=0",
                "The join timeout (0:00:00) must be positive.",
            ),
            (
                "last_call_timeout=-1",
                "The last_call timeout (-1 day, 23:59:59) must be positive.",
            ),
            (
                "close_timeout=0",
                "The close timeout (0:00:00) must be positive.",
            ),
            (
                "heartbeat_timeout=-90000",
                "The heartbeat timeout (-2 days, 23:00:00) must be positive.",
            ),
            (
                "join_timeout=x",
                "The rendezvous configuration option 'join_timeout' does not represent a valid \
                 integer value.",
            ),
            (
                "cas_backoff_max_seconds=x",
                "cas_backoff_max_seconds('x') is not a valid float value.",
            ),
            (
                "cas_backoff_max_seconds=nan",
                "cas_backoff_max_seconds (nan) must be finite and non-negative.",
            ),
            (
                "cas_backoff_max_seconds=-1.0",
                "cas_backoff_max_seconds (-1.0) must be finite and non-negative.",
            ),
            // torchelastic accepts this value, and then loses every node immediately.
            (
                "keep_alive_interval=0",
                "The rendezvous configuration option 'keep_alive_interval' must be greater than \
                 zero, but was 0.",
            ),
            (
                "keep_alive_max_attempt=-1",
                "The rendezvous configuration option 'keep_alive_max_attempt' must be greater \
                 than zero, but was -1.",
            ),
        ] {
            assert_eq!(read(config).unwrap_err(), text, "{config}");
        }
    }
}
