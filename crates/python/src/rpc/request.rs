//! A call that has come, for the thread of Python's that works on it.

use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use rdzv_lock::Mutex;
use rdzv_rpc::{CallContext, RemoteError, Responder};

use super::errors::{failure, kept_failure};
use super::message::{Kept, Reply};
use super::one_time::Sender;
use super::reference::{Content, RpcReference, incoming, outgoing};
use crate::handle::{Origin, leave};
use crate::interrupt::detach;

/// The thing that is to be done.
pub(super) enum Work {
    Call(String, Reply, Responder<Reply>),
    Keep(String, Reply, Sender<Result<Kept, RemoteError>>),
    Send(Arc<Kept>, Sender<Result<Reply, RemoteError>>),
}

/// The one who waits for it.
enum Caller {
    Call(Responder<Reply>),
    Keep(Sender<Result<Kept, RemoteError>>),
    Send(Sender<Result<Reply, RemoteError>>),
}

/// A call of another worker. Dropped without an answer, it fails; in a forked child it is left alone.
#[pyclass(frozen, name = "RpcRequest", module = "rdzv._rdzv")]
pub(crate) struct RpcRequest {
    origin: Origin,
    context: CallContext,
    /// The name of the function; empty for a value that is to be sent.
    #[pyo3(get)]
    function: Py<PyString>,
    content: Mutex<Option<Reply>>,
    value: Option<Arc<Kept>>,
    caller: Mutex<Option<Caller>>,
}

impl RpcRequest {
    pub(super) fn new(py: Python<'_>, context: CallContext, work: Work) -> Self {
        let (function, content, value, caller) = match work {
            Work::Call(function, content, caller) => {
                (function, Some(content), None, Caller::Call(caller))
            }
            Work::Keep(function, content, caller) => {
                (function, Some(content), None, Caller::Keep(caller))
            }
            Work::Send(value, caller) => (String::new(), None, Some(value), Caller::Send(caller)),
        };
        Self {
            origin: Origin::here(),
            context,
            function: PyString::new(py, &function).unbind(),
            content: Mutex::new(content),
            value,
            caller: Mutex::new(Some(caller)),
        }
    }

    pub(super) fn context(&self) -> &CallContext {
        &self.context
    }

    fn answer(&self, answer: impl FnOnce(Caller) -> PyResult<()>) -> PyResult<()> {
        self.origin.check("call")?;
        let caller = self.caller.lock().take();
        match caller {
            Some(caller) => answer(caller),
            None => Err(PyRuntimeError::new_err("the call was answered before")),
        }
    }
}

impl Drop for RpcRequest {
    fn drop(&mut self) {
        if self.origin.is_foreign() {
            // The connection is the parent's, and it answers.
            leave(self.content.get_mut().take());
            leave(self.caller.get_mut().take());
            leave(self.value.take());
            leave(self.context.clone());
        }
    }
}

fn other() -> PyErr {
    PyRuntimeError::new_err("the call wants another kind of answer")
}

#[pymethods]
impl RpcRequest {
    /// Name and id of the caller.
    #[getter]
    fn caller(&self) -> (String, u32) {
        let caller = self.context.caller();
        (caller.name.to_string(), caller.id.0)
    }

    /// Whether nobody waits for the result any more.
    #[getter]
    fn is_cancelled(&self) -> bool {
        self.context.cancellation().is_cancelled()
    }

    /// Whether the result is to be kept.
    #[getter]
    fn keeps(&self) -> bool {
        matches!(&*self.caller.lock(), Some(Caller::Keep(_)))
    }

    /// Whether a copy of `value` is to be sent.
    #[getter]
    fn sends(&self) -> bool {
        self.value.is_some()
    }

    /// Pickle, memory and references; can be taken once.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Content<'py>> {
        match self.content.lock().take() {
            Some(content) => incoming(py, content),
            None => Err(PyRuntimeError::new_err(
                "the call has no content, or it was taken",
            )),
        }
    }

    /// The value that is to be sent.
    #[getter]
    fn value(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.value.as_ref().map(|value| value.object(py))
    }

    #[pyo3(signature = (body, parts, references))]
    fn reply(
        &self,
        py: Python<'_>,
        body: &Bound<'_, PyBytes>,
        parts: Vec<Bound<'_, PyAny>>,
        references: Vec<PyRef<'_, RpcReference>>,
    ) -> PyResult<()> {
        let reply = outgoing(body, &parts, &references)?;
        self.answer(|caller| {
            match caller {
                Caller::Call(responder) => detach(py, || responder.respond(Ok(reply))),
                Caller::Send(sender) => detach(py, || sender.send(Ok(reply))),
                Caller::Keep(_) => return Err(other()),
            }
            Ok(())
        })
    }

    /// Ends the connection of the caller.
    fn hang_up(&self, py: Python<'_>, reason: &str) {
        detach(py, || self.context.hang_up(reason));
    }

    /// Keeps the result.
    fn keep(&self, py: Python<'_>, value: Py<PyAny>) -> PyResult<()> {
        self.answer(|caller| match caller {
            Caller::Keep(sender) => {
                detach(py, || sender.send(Ok(Kept(value))));
                Ok(())
            }
            _ => Err(other()),
        })
    }

    /// Answers with an error.
    #[pyo3(signature = (kind, type_name, message, causes, details))]
    fn fail(
        &self,
        py: Python<'_>,
        kind: &str,
        type_name: String,
        message: String,
        causes: Vec<String>,
        details: Vec<u8>,
    ) -> PyResult<()> {
        let remote = RemoteError {
            type_name,
            message,
            causes,
            code: 0,
            details,
        };
        self.answer(|caller| {
            detach(py, || match caller {
                Caller::Call(responder) => responder.respond(Err(failure(kind, remote))),
                Caller::Keep(sender) => sender.send(Err(kept_failure(kind, remote))),
                Caller::Send(sender) => sender.send(Err(kept_failure(kind, remote))),
            });
            Ok(())
        })
    }
}
