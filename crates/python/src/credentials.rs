//! Arguments `token` and `tls`: credentials of a process and its peers.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rdzv_trust::{Credentials, Identity, Token};

use crate::argument::{Object, type_name, value};

const FILES: [&str; 3] = ["certificate", "key", "authorities"];

/// Reads `token` (`str`, `bytes` or `None`) and `tls` (a `dict` or `None`).
///
/// `tls` has three paths. Errors do not show the token.
pub(crate) fn credentials(
    token: Option<Object<'_>>,
    tls: Option<Object<'_>>,
) -> PyResult<Credentials> {
    let token = token.map(|token| {
        let secret = value("token", token)?;
        Token::of(secret, "token".to_owned())
            .map_err(|error| PyValueError::new_err(format!("token=: {error}")))
    });
    let identity = tls.map(identity);
    Ok(Credentials {
        token: token.transpose()?,
        identity: identity.transpose()?.map(Arc::new),
    })
}

fn identity(tls: Object<'_>) -> PyResult<Identity> {
    let files = tls.cast::<PyDict>().map_err(|_| {
        PyTypeError::new_err(format!(
            "tls must be a dict with the files {}, not {}",
            FILES.join(", "),
            type_name(tls)
        ))
    })?;
    if let Some(other) = files.keys().iter().find(|key| {
        let known = key.extract::<String>();
        !known.is_ok_and(|key| FILES.contains(&key.as_str()))
    }) {
        return Err(PyValueError::new_err(format!(
            "tls has the unknown key {}: its keys are {}",
            other.repr()?,
            FILES.join(", ")
        )));
    }
    let [certificate, key, authorities] = FILES.map(|name| match files.get_item(name)? {
        Some(file) => file.extract::<PathBuf>().map_err(|_| {
            let found = type_name(&file);
            PyTypeError::new_err(format!("tls[{name:?}] must be a path, not {found}"))
        }),
        None => Err(PyValueError::new_err(format!(
            "tls has no {name}: its keys are {}",
            FILES.join(", ")
        ))),
    });
    Identity::from_files(&certificate?, &key?, &authorities?)
        .map_err(|error| PyValueError::new_err(error.to_string()))
}
