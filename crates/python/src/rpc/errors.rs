//! Errors of calls as exceptions, which `rdzv.rpc._errors` makes.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rdzv_rpc::{RemoteError, RpcError, RpcErrorKind};

use crate::interrupt::below;

/// The kinds by the names that Python has for them.
const KINDS: [(RpcErrorKind, &str); 19] = [
    (RpcErrorKind::InvalidArgument, "InvalidArgument"),
    (RpcErrorKind::NotInitialized, "NotInitialized"),
    (RpcErrorKind::AlreadyInitialized, "AlreadyInitialized"),
    (RpcErrorKind::UnknownWorker, "UnknownWorker"),
    (RpcErrorKind::DuplicateName, "DuplicateName"),
    (RpcErrorKind::DuplicateId, "DuplicateId"),
    (RpcErrorKind::GroupMismatch, "GroupMismatch"),
    (RpcErrorKind::DeviceMap, "DeviceMap"),
    (RpcErrorKind::Serialization, "Serialization"),
    (RpcErrorKind::NoSuchMethod, "NoSuchMethod"),
    (RpcErrorKind::Deadline, "Deadline"),
    (RpcErrorKind::Cancelled, "Cancelled"),
    (RpcErrorKind::PeerLost, "PeerLost"),
    (RpcErrorKind::Overloaded, "Overloaded"),
    (RpcErrorKind::Stopping, "Stopping"),
    (RpcErrorKind::Remote, "Remote"),
    (RpcErrorKind::Protocol, "Protocol"),
    (RpcErrorKind::Store, "Store"),
    (RpcErrorKind::Internal, "Internal"),
];

/// `RemoteError::code` of a refusal that travels as the error of a function, less the index of its kind.
const REFUSED: i64 = -1000;

/// The exception for a failed call.
pub(super) fn of_rpc(py: Python<'_>, error: &RpcError) -> PyErr {
    let (mut kind, mut message) = (name(error.kind), error.message.clone());
    let remote = error.remote.as_deref();
    let refused = remote.and_then(|remote| KINDS.get(usize::try_from(REFUSED - remote.code).ok()?));
    let remote = match (remote, refused) {
        (Some(remote), Some((_, refusal))) => {
            (kind, message) = (refusal, remote.message.clone());
            None
        }
        (remote, _) => remote,
    };
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
    let made = below(py, || {
        py.import("rdzv.rpc._errors")
            .and_then(|module| module.getattr("made"))
            .and_then(|made| {
                made.call1((
                    kind,
                    message,
                    worker,
                    error.method.clone(),
                    error.is_retryable(),
                    remote,
                ))
            })
    });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// The failure of a call, as Python describes it: that of its function, or a refusal of this kind.
pub(super) fn failure(kind: &str, remote: RemoteError) -> RpcError {
    let found = KINDS.iter().find(|(_, name)| *name == kind);
    match found {
        Some((kind, _)) if *kind != RpcErrorKind::Remote => RpcError::new(*kind, remote.message),
        _ => RpcError {
            remote: Some(Box::new(remote.clone())),
            ..RpcError::new(RpcErrorKind::Remote, remote.to_string())
        },
    }
}

/// The same for a function whose result is kept: a refusal says its kind by its number.
pub(super) fn kept_failure(kind: &str, remote: RemoteError) -> RemoteError {
    let index = KINDS.iter().position(|(_, name)| *name == kind);
    match (index, kind) {
        (Some(index), kind) if kind != "Remote" => RemoteError {
            code: REFUSED - index as i64,
            ..remote
        },
        _ => remote,
    }
}

fn name(kind: RpcErrorKind) -> &'static str {
    let mut kinds = KINDS.iter();
    kinds
        .find(|(known, _)| *known == kind)
        .map_or("Internal", |(_, name)| name)
}
