//! The options (`--rdzv-conf`) of every dynamic rendezvous, checked with torchelastic's texts.
//!
//! | option | default | what |
//! |---|---|---|
//! | `join_timeout` | 600 s | how long to try to get into a round |
//! | `last_call_timeout` | 30 s | how long to wait for more nodes once there are enough; 0 is allowed here |
//! | `close_timeout` | 30 s | how long to try to close |
//! | `heartbeat_timeout` | 5 s | how long to try one heartbeat |
//! | `keep_alive_interval` | 5 s | time between heartbeats |
//! | `keep_alive_max_attempt` | 3 | missed heartbeats after which a node is lost |
//! | `cas_backoff_max_seconds` | 0 s | most that is slept after a lost write |

use std::time::Duration;

use rdzv_rendezvous_proto::Settings;

use crate::{RendezvousError, RendezvousParameters};

/// The names of the options above.
const NAMES: [&str; 7] = [
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "cas_backoff_max_seconds",
];

/// Options that launchers add for all backends.
const OF_LAUNCHER: [&str; 2] = ["timeout", "rank"];

/// Reads the options of a dynamic rendezvous. Those that nobody knows are passed over, as
/// torchelastic does; [`note_unknown`] says so.
pub fn from_parameters(parameters: &RendezvousParameters) -> Result<Settings, RendezvousError> {
    let defaults = Settings::new(parameters.min_nodes, parameters.max_nodes);
    let timeout = |name: &str, least: i64, default: Duration| {
        let option = format!("{name}_timeout");
        let Some(seconds) = parameters.get_as_int(&option)? else {
            return Ok(default);
        };
        match u64::try_from(seconds) {
            Ok(given) if seconds >= least => Ok(Duration::from_secs(given)),
            _ => Err(wrong(format!(
                "The {name} timeout ({}) must be positive.",
                as_shown_by_the_reference(seconds)
            ))),
        }
    };
    let positive = |option: &str, default: u64| match parameters.get_as_int(option)? {
        None => Ok(default),
        Some(given @ 1..) => Ok(given.unsigned_abs()),
        Some(given) => Err(wrong(format!(
            "The rendezvous configuration option '{option}' must be greater than zero, but was \
             {given}."
        ))),
    };
    let attempts = u64::from(defaults.keep_alive_max_attempt);
    let attempts = positive("keep_alive_max_attempt", attempts)?;
    let interval = defaults.keep_alive_interval.as_secs();
    Ok(Settings {
        join_timeout: timeout("join", 1, defaults.join_timeout)?,
        last_call_timeout: timeout("last_call", 0, defaults.last_call_timeout)?,
        close_timeout: timeout("close", 1, defaults.close_timeout)?,
        heartbeat_timeout: timeout("heartbeat", 1, defaults.heartbeat_timeout)?,
        keep_alive_interval: Duration::from_secs(positive("keep_alive_interval", interval)?),
        keep_alive_max_attempt: u32::try_from(attempts).unwrap_or(u32::MAX),
        cas_backoff_max: backoff(parameters)?,
        ..defaults
    })
}

/// Says (at debug level) which options neither this module nor the backend, which knows `also`,
/// does anything with.
pub fn note_unknown(parameters: &RendezvousParameters, also: &[&str]) {
    for option in parameters.config.keys().map(String::as_str) {
        if ![&NAMES, &OF_LAUNCHER[..], also].concat().contains(&option) {
            tracing::debug!(
                option,
                backend = parameters.backend,
                "this option of --rdzv-conf is not known and has no effect"
            );
        }
    }
}

fn backoff(parameters: &RendezvousParameters) -> Result<Duration, RendezvousError> {
    let option = "cas_backoff_max_seconds";
    let Some(text) = parameters.get(option) else {
        return Ok(Duration::ZERO);
    };
    let seconds: f64 = text
        .trim()
        .parse()
        .map_err(|_| wrong(format!("{option}('{text}') is not a valid float value.")))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        wrong(format!(
            "{option} ({text}) must be finite and non-negative."
        ))
    })
}

fn wrong(what: String) -> RendezvousError {
    RendezvousError::Argument(what)
}

/// Seconds as days and hours, minutes, seconds, the way its messages show them.
fn as_shown_by_the_reference(seconds: i64) -> String {
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
    use crate::parse_config;

    fn read(config: &str) -> Result<Settings, String> {
        let config = parse_config(config).unwrap();
        let parameters = RendezvousParameters::new("c10d", "h:1", "run", 2, 3, config).unwrap();
        from_parameters(&parameters).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_given_is_as_in_the_reference() {
        assert_eq!(read("").unwrap(), Settings::new(2, 3));
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
                close_timeout: seconds(3),
                heartbeat_timeout: seconds(4),
                keep_alive_interval: seconds(6),
                keep_alive_max_attempt: 7,
                cas_backoff_max: Duration::from_millis(500),
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
            // Nonsense that torchelastic lets pass: with it, every node is lost at once.
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
