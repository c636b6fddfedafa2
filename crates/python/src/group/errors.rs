//! Errors of groups as exceptions of `rdzv._errors`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rdzv_collective::{AbortCause, CollectiveError};

use crate::errors::{exception, of_store};

/// Returns the exception for a failure of a group.
///
/// It is `ValueError` for a wrong argument, and otherwise `CollectiveError` or one of its
/// subclasses.
pub(super) fn of_group(
    py: Python<'_>,
    error: &CollectiveError,
    operation: &str,
    rank: u32,
) -> PyErr {
    if let CollectiveError::Argument(text) = error {
        return PyValueError::new_err(text.clone());
    }
    let (suspect, blamed) = error.blame(rank);
    let (class, cause) = match (error, blamed) {
        (CollectiveError::Broken { .. }, _) => ("CollectiveError", "broken"),
        (CollectiveError::Store { .. }, _) => ("CollectiveError", "store"),
        (CollectiveError::AlreadyJoined { .. } | CollectiveError::WorldSize { .. }, _) => {
            ("CollectiveError", "mismatch")
        }
        (CollectiveError::Missing { .. } | CollectiveError::NoSender { .. }, _) => {
            ("CollectiveTimeout", "timeout")
        }
        (CollectiveError::System { .. }, _) => ("CollectiveError", "system"),
        (CollectiveError::Object { .. }, _) => ("CollectiveError", "object"),
        (_, AbortCause::TimedOut) => ("CollectiveTimeout", "timeout"),
        (_, AbortCause::Lost) => ("RankLost", "lost"),
        (_, AbortCause::Mismatch) => ("CollectiveError", "mismatch"),
        (_, AbortCause::Refused) => ("CollectiveError", "refused"),
        (_, AbortCause::Interrupted) => ("CollectiveError", "interrupted"),
        _ => ("CollectiveError", "other"),
    };
    let peers: Vec<u32> = match error {
        CollectiveError::Missing { missing, .. } => missing.clone(),
        CollectiveError::NotReached { missing, .. } => {
            missing.iter().map(|(rank, _)| *rank).collect()
        }
        // The error blames this rank itself, so it names the rank that reports this.
        CollectiveError::Aborted { peer, suspect, .. } if *suspect == rank => vec![*peer],
        _ => (suspect != rank).then_some(suspect).into_iter().collect(),
    };
    let set = || {
        let attributes = PyDict::new(py);
        attributes.set_item("rank", rank)?;
        attributes.set_item("peer", peers.first())?;
        attributes.set_item("peers", PyTuple::new(py, &peers)?)?;
        attributes.set_item("operation", operation)?;
        attributes.set_item("cause", cause)?;
        let elapsed = error.elapsed().map(|elapsed| elapsed.as_secs_f64());
        attributes.set_item("elapsed", elapsed)?;
        Ok(attributes)
    };
    let raised = set().map_or_else(
        |error| error,
        |attributes| exception(py, class, error.to_string(), Some(&attributes)),
    );
    if let CollectiveError::Store { source, .. } = error {
        raised.set_cause(py, Some(of_store(py, source)));
    }
    raised
}
