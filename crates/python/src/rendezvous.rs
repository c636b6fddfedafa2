//! Rendezvous of other agents: the native backend for a handler in Python.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rdzv_lock::Mutex;
use rdzv_rendezvous::{
    BackendRegistry, Change, Interrupter, JoiningAgent, RendezvousBackend, RendezvousError,
    RendezvousInfo, RendezvousParameters,
};

use crate::argument::Object;
use crate::credentials::credentials;
use crate::errors::exception;
use crate::handle::{Ending, Handle};
use crate::interrupt::{detach, detached, on_thread};
use crate::store::{Kind, StoreObject};

/// Backend, with the events that its observer has received.
struct Inner {
    backend: Mutex<Box<dyn RendezvousBackend>>,
    interrupter: Option<Interrupter>,
    seen: Arc<Mutex<Seen>>,
    /// Last round; this process may host its server.
    info: Mutex<Option<RendezvousInfo>>,
    _ending: Ending,
}

impl Inner {
    fn interrupt(&self) {
        if let Some(interrupt) = &self.interrupter {
            interrupt();
        }
    }
}

/// Events that the observer has received, and the round of this node.
#[derive(Default)]
struct Seen {
    /// Latest round that has ended.
    changed: Option<u64>,
    round: Option<u64>,
    closed: bool,
}

/// Native half of a rendezvous handler.
#[pyclass(frozen, name = "Rendezvous", module = "rdzv._rdzv")]
pub(crate) struct Rendezvous(Handle<Arc<Inner>>);

#[pymethods]
impl Rendezvous {
    #[new]
    #[pyo3(signature = (backend, endpoint, run_id, min_nodes, max_nodes, local_addr, config, token=None, tls=None))]
    #[expect(clippy::too_many_arguments, reason = "they are the arguments of torch")]
    fn new(
        py: Python<'_>,
        backend: String,
        endpoint: String,
        run_id: String,
        min_nodes: u32,
        max_nodes: u32,
        local_addr: Option<String>,
        config: BTreeMap<String, String>,
        token: Option<Object<'_>>,
        tls: Option<Object<'_>>,
    ) -> PyResult<Self> {
        let credentials = credentials(token, tls)?;
        let made = detached(py, || {
            let parameters =
                RendezvousParameters::new(backend, endpoint, run_id, min_nodes, max_nodes, config)?;
            let parameters = RendezvousParameters {
                local_addr,
                credentials,
                ..parameters
            };
            BackendRegistry::with_defaults().create(&parameters)
        })?;
        let mut backend = made.map_err(|error| of_rendezvous(py, &error))?;
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let observed = Arc::clone(&seen);
        backend.set_observer(Box::new(move |change| match change {
            Change::Membership { round, .. } => observed.lock().changed = Some(round),
            Change::Closed => observed.lock().closed = true,
            // The workers, or the calls of the next round, report this. There are no workers here
            // to suspend.
            Change::PeerFailed { .. }
            | Change::Lost(_)
            | Change::Lease { .. }
            | Change::LossesKnownWithin(_) => {}
        }));
        let inner = Arc::new_cyclic(|inner| Inner {
            interrupter: backend.interrupter(),
            backend: Mutex::new(backend),
            seen,
            info: Mutex::new(None),
            _ending: Ending::of(inner, Inner::interrupt),
        });
        Ok(Self(Handle::new("rendezvous", inner)))
    }

    /// Joins the next round, and returns its data.
    ///
    /// These are the round, the rank, the number of nodes, and host and port of the round's store.
    fn join(&self, py: Python<'_>) -> PyResult<(u64, u32, u32, String, u16)> {
        let inner = self.0.get()?;
        let joins = Arc::clone(&inner);
        let joined = on_thread(py, "rdzv-join", move || {
            let member = JoiningAgent {
                role: "default".to_owned(),
                // Only the agent above this handler knows the number.
                local_world_size: 0,
                share_store: true,
                master_port: None,
                lost: Vec::new(),
            };
            joins.backend.lock().join(&member)
        });
        if !matches!(joined, Ok(Some(_))) {
            inner.interrupt();
        }
        let info = match joined? {
            Some(Ok(info)) => info,
            Some(Err(error)) => return Err(of_rendezvous(py, &error)),
            None => return Err(of_rendezvous(py, &RendezvousError::Interrupted)),
        };
        let round = (
            info.round,
            info.rank.0,
            info.world_size,
            info.master_addr.clone(),
            info.master_port,
        );
        inner.seen.lock().round = Some(info.round);
        let former = inner.info.lock().replace(info);
        detach(py, || drop(former));
        Ok(round)
    }

    /// Returns the store that the agents of the last round share.
    fn store(&self) -> PyResult<StoreObject> {
        let inner = self.0.get()?;
        let info = inner.info.lock();
        match &*info {
            Some(info) => Ok(StoreObject::new(Arc::clone(&info.store), Kind::Round)),
            None => Err(PyRuntimeError::new_err(
                "this handler has not joined a round: call next_rendezvous first",
            )),
        }
    }

    /// True if no node can join any more.
    fn is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        let inner = self.0.get()?;
        if inner.seen.lock().closed {
            return Ok(true);
        }
        asked(py, move || inner.backend.lock().is_closed())
    }

    /// Closes the rendezvous for all nodes.
    fn set_closed(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.0.get()?;
        asked(py, move || inner.backend.lock().set_closed())
    }

    /// Returns 1 if the round of this node has ended, otherwise 0.
    ///
    /// A round ends because nodes wait, have left or are lost. The call sends no request.
    fn num_nodes_waiting(&self) -> PyResult<u32> {
        let inner = self.0.get()?;
        let seen = inner.seen.lock();
        Ok(u32::from(
            seen.round.is_some() && seen.changed == seen.round,
        ))
    }

    /// Closes the rendezvous for all nodes, and frees it; True on success.
    fn shutdown(&self, py: Python<'_>) -> PyResult<bool> {
        let Some(inner) = self.0.close(py) else {
            return Ok(true);
        };
        asked(py, move || {
            // A host waits for the connections of its clients, and this is one of them.
            let info = inner.info.lock().take();
            if let Some(info) = &info
                && let Some(end) = info.store.connection().and_then(|it| it.breaker())
            {
                end();
            }
            drop(info);
            Ok(inner.backend.lock().shutdown())
        })
    }
}

/// Waits for a request to the other nodes, on a separate thread.
fn asked<T: Send + 'static>(
    py: Python<'_>,
    request: impl FnOnce() -> Result<T, RendezvousError> + Send + 'static,
) -> PyResult<T> {
    let answer = on_thread(py, "rdzv-rendezvous", request)?;
    let answer = answer.unwrap_or(Err(RendezvousError::Interrupted));
    answer.map_err(|error| of_rendezvous(py, &error))
}

/// Returns the exception for a failure of a rendezvous.
pub(crate) fn of_rendezvous(py: Python<'_>, error: &RendezvousError) -> PyErr {
    if let RendezvousError::Argument(text) = error {
        return pyo3::exceptions::PyValueError::new_err(text.clone());
    }
    exception(py, error.class(), error.to_string(), None)
}
