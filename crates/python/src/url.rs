//! Init-method URLs, for `rdzv.rendezvous.rendezvous`.
//!
//! The handlers in Python are above this module.

use pyo3::prelude::*;
use rdzv_rendezvous::RendezvousError;
use rdzv_rendezvous::url::{Joined, UrlOptions, rendezvous};
use rdzv_store::interruptible;

use crate::argument::Object;
use crate::credentials::credentials;
use crate::errors::of_store;
use crate::interrupt::{detached, is_to_end};
use crate::rendezvous::of_rendezvous;
use crate::store::kinds::of_url;
use crate::timeout::timeout;

/// Joins the rendezvous of a URL with a built-in scheme.
///
/// Returns the store, the rank and the number of workers.
#[pyfunction]
#[pyo3(signature = (url, rank, world_size, timeout, token, tls))]
pub(crate) fn url_rendezvous(
    py: Python<'_>,
    url: &str,
    rank: Option<u32>,
    world_size: Option<u32>,
    timeout: Option<Object<'_>>,
    token: Option<Object<'_>>,
    tls: Option<Object<'_>>,
) -> PyResult<(Py<PyAny>, u32, u32)> {
    let mut options = UrlOptions::default();
    if let Some(limit) = self::timeout("timeout", timeout)? {
        options.timeout = limit;
    }
    let given = credentials(token, tls)?;
    if !given.is_empty() {
        options.credentials = Some(given);
    }
    let joined = detached(py, || {
        interruptible(is_to_end, || {
            rendezvous(url, rank, world_size, options)?.join()
        })
    })?;
    match joined {
        Ok(Joined {
            store,
            rank,
            world_size,
        }) => Ok((of_url(py, store)?, rank.0, world_size)),
        Err(RendezvousError::Store(error)) => Err(of_store(py, &error)),
        Err(error) => Err(of_rendezvous(py, &error)),
    }
}
