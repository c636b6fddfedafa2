//! Which signals end the run in order, and how long workers may take after one.

use std::time::Duration;

use rdzv_core::env::TORCH_ELASTIC_SHUTDOWN_TIMEOUT;

use super::{Environment, Note};
use crate::args::RunArgs;
use crate::args::conventions::bad_integer;
use crate::args::number::parse_int;
use crate::exit::Raised;
use crate::signal;

/// Seconds between the closing signal and SIGKILL if nothing else is said.
const SHUTDOWN_TIMEOUT: i64 = 30;

/// Numbers of the signals in `--signals-to-handle`. A name that does not exist is left out with a
/// warning; a signal that nobody can handle is an error.
pub(super) fn numbers(names: &str, notes: &mut Vec<Note>) -> Result<Vec<i32>, Raised> {
    let mut numbers = Vec::new();
    for name in names.split(',') {
        match signal::number(name.trim()) {
            Some(signal::KILL | signal::STOP) => {
                return Err(Raised::new("OSError", "[Errno 22] Invalid argument"));
            }
            Some(number) if numbers.contains(&number) => {}
            Some(number) => numbers.push(number),
            None => notes.push(Note::Warning(format!(
                "Failed to register signal handler for {name}: there is no signal of that name"
            ))),
        }
    }
    Ok(numbers)
}

/// The grace of every path on which workers are stopped.
pub(super) fn shutdown_timeout(
    arguments: &RunArgs,
    environment: &Environment,
) -> Result<Duration, Raised> {
    let Some(seconds) = arguments.shutdown_timeout else {
        let seconds = match environment.text(TORCH_ELASTIC_SHUTDOWN_TIMEOUT) {
            Some(text) => parse_int(&text).ok_or_else(|| bad_integer(&text))?,
            None => SHUTDOWN_TIMEOUT,
        };
        // Only the flag is refused when it is negative.
        return Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    };
    match u64::try_from(seconds) {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => Err(Raised::value_error(format!(
            "shutdown_timeout must be non-negative, got {seconds}"
        ))),
    }
}
