//! What comes between a failure and the next attempt.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::args::number::parse_int;
use crate::args::restart::RestartArgs;
use crate::exit::Refusal;

/// What failures lead to another attempt, and when.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Restarts {
    /// Exit codes, or minus the numbers of signals, after which there is none.
    pub(super) non_retryable: BTreeSet<i32>,
    /// How long the node rests before it.
    pub(super) settle_delay: Duration,
}

/// Reads the flags.
pub(super) fn restarts(arguments: &RestartArgs) -> Result<Restarts, Refusal> {
    let settle_delay = Duration::try_from_secs_f64(arguments.settle_delay).map_err(|_| {
        refused(
            "--settle-delay",
            &format!("{} is no number of seconds from 0", arguments.settle_delay),
        )
    })?;
    let codes = arguments.final_exit_codes.as_deref().unwrap_or_default();
    let non_retryable = codes
        .split(',')
        .map(str::trim)
        .filter(|code| !code.is_empty())
        .map(code)
        .collect::<Result<_, _>>()?;
    Ok(Restarts {
        non_retryable,
        settle_delay,
    })
}

fn code(text: &str) -> Result<i32, Refusal> {
    parse_int(text)
        .and_then(|code| i32::try_from(code).ok())
        .filter(|code| (-64..=255).contains(code) && *code != 0)
        .ok_or_else(|| {
            let what = format!(
                "'{text}' is neither an exit code (1 to 255) nor minus the number of a signal"
            );
            refused("--final-exit-codes", &what)
        })
}

fn refused(flag: &str, what: &str) -> Refusal {
    Refusal::Usage(format!("argument {flag}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(codes: Option<&str>, settle_delay: f64) -> Result<Restarts, Refusal> {
        restarts(&RestartArgs {
            final_exit_codes: codes.map(str::to_owned),
            settle_delay,
        })
    }

    #[test]
    fn codes_and_signals_are_numbers() {
        let restarts = read(Some("3, 42,-6"), 1.5).unwrap();
        assert_eq!(restarts.non_retryable, [3, 42, -6].into());
        assert_eq!(restarts.settle_delay, Duration::from_millis(1500));
        assert!(read(None, 0.0).unwrap().non_retryable.is_empty());
    }

    #[test]
    fn what_is_none_is_refused_by_name() {
        for codes in ["0", "256", "x", "3,,SIGTERM", "-65"] {
            assert!(read(Some(codes), 0.0).is_err(), "{codes}");
        }
        for delay in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(read(None, delay).is_err(), "{delay}");
        }
    }
}
