//! Timeouts of Python: seconds as a number, or a `timedelta`.

use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDelta;

use crate::argument::Object;

/// Duration that means no limit.
pub(crate) const FOREVER: Duration = Duration::MAX;

/// Converts a duration for Python; [`FOREVER`] becomes the longest `timedelta`.
pub(crate) fn timedelta(py: Python<'_>, duration: Duration) -> PyResult<Bound<'_, PyAny>> {
    const SECONDS_OF_A_DAY: u64 = 86_400;
    let days = i32::try_from(duration.as_secs() / SECONDS_OF_A_DAY).unwrap_or(i32::MAX);
    let seconds = (duration.as_secs() % SECONDS_OF_A_DAY) as i32;
    match PyDelta::new(py, days, seconds, duration.subsec_micros() as i32, false) {
        Ok(delta) => Ok(delta.into_any()),
        Err(_) => py.import("datetime")?.getattr("timedelta")?.getattr("max"),
    }
}

/// Converts a duration to seconds; [`FOREVER`] becomes infinity.
pub(crate) fn seconds(duration: Duration) -> f64 {
    match duration {
        FOREVER => f64::INFINITY,
        duration => duration.as_secs_f64(),
    }
}

/// Reads the argument `name`, a timeout.
///
/// `None` stays `None`, and `math.inf` is [`FOREVER`].
///
/// Zero, negative values and NaN are refused.
pub(crate) fn timeout(name: &str, value: Option<Object<'_>>) -> PyResult<Option<Duration>> {
    let Some(value) = value.filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    // A `timedelta` is no number, but has a method for its seconds.
    let seconds = match value.extract::<f64>() {
        Ok(seconds) => seconds,
        Err(_) => value
            .call_method0("total_seconds")
            .and_then(|seconds| seconds.extract::<f64>())
            .map_err(|_| {
                PyTypeError::new_err(format!(
                    "{name} must be seconds as a number, a timedelta or None, not {}",
                    value.get_type()
                ))
            })?,
    };
    if seconds.is_nan() || seconds <= 0.0 {
        return Err(PyValueError::new_err(format!(
            "{name} is {seconds} s: pass a positive number of seconds, or math.inf to wait without \
             a limit"
        )));
    }
    Ok(Some(
        Duration::try_from_secs_f64(seconds).unwrap_or(FOREVER),
    ))
}
