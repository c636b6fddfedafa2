//! Errors of calls as exceptions, which `rdzv.rpc._errors` makes.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rdzv_rpc::{RemoteError, RpcError, RpcErrorKind};
use serde::Deserialize;
use serde::de::{IntoDeserializer, value};

use crate::errors::{in_python, raised};

/// Returns the kind for a name or a number from Python or a peer.
fn kind_of<'de>(of: impl IntoDeserializer<'de, value::Error>) -> Option<RpcErrorKind> {
    RpcErrorKind::deserialize(of.into_deserializer()).ok()
}

/// Base of `RemoteError::code` for refusals that are sent as function errors.
///
/// The code is this number minus the index of the kind.
const REFUSED: i64 = -1000;

/// Returns the exception for a failed call.
pub(super) fn of_rpc(py: Python<'_>, error: &RpcError) -> PyErr {
    let (mut kind, mut message) = (error.kind, in_python(&error.message));
    let mut remote = error.remote.as_deref();
    let refused = remote.and_then(|remote| {
        let refusal = kind_of(u32::try_from(REFUSED - remote.code).ok()?)?;
        Some((refusal, remote.message.clone()))
    });
    if let Some(refused) = refused {
        ((kind, message), remote) = (refused, None);
    }
    let worker = error.worker.as_ref();
    let worker = worker.map(|worker| (worker.name.to_string(), worker.id.0));
    let remote = remote.map(|remote| {
        (
            remote.type_name.clone(),
            remote.message.clone(),
            remote.causes.clone(),
            PyBytes::new(py, &remote.details),
        )
    });
    let (method, retryable) = (error.method.as_deref(), error.is_retryable());
    raised(py, || {
        let module = py.import("rdzv.rpc._errors")?;
        let arguments = (kind.to_string(), message, worker, method, retryable, remote);
        module.call_method1("made", arguments)
    })
}

/// Returns the failure of a call: its function's error, or a refusal.
pub(super) fn failure(kind: &str, remote: RemoteError) -> RpcError {
    match kind_of(kind) {
        Some(kind) if kind != RpcErrorKind::Remote => RpcError::new(kind, remote.message),
        _ => {
            let mut error = RpcError::new(RpcErrorKind::Remote, remote.to_string());
            error.remote = Some(Box::new(remote));
            error
        }
    }
}

/// Returns the failure of a function whose result is kept, or of its copy.
///
/// A refusal carries its kind as a number.
pub(super) fn kept_failure(kind: &str, remote: RemoteError) -> RemoteError {
    match kind_of(kind) {
        Some(kind) if kind != RpcErrorKind::Remote => RemoteError {
            code: REFUSED - kind as i64,
            ..remote
        },
        _ => remote,
    }
}
