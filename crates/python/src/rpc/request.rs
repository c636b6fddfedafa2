//! A call that has come, for the thread of Python's that works on it.

use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use rdzv_lock::Mutex;
use rdzv_rpc::{CallContext, RemoteError, Responder};
use tokio::sync::oneshot::Sender;

use super::errors::{failure, kept_failure};
use super::message::{Call, Kept, Reply};
use super::named;
use super::reference::{Content, RpcReference, incoming, outgoing};
use crate::handle::Own;
use crate::interrupt::detach;

/// The one who waits for an answer.
pub(super) enum Caller {
    Call(Responder<Reply>),
    Keep(Sender<Result<Kept, RemoteError>>),
    Send(Sender<Result<Reply, RemoteError>>),
}

/// A call on its way to a thread of Python's.
pub(super) struct Arrived {
    pub(super) context: CallContext,
    /// `None` for a value that is to be sent.
    pub(super) call: Option<Call>,
    pub(super) value: Option<Arc<Kept>>,
    pub(super) caller: Caller,
}

/// A call of another worker. Dropped without an answer, it fails; in a forked child it is left alone.
#[pyclass(frozen, name = "RpcRequest", module = "rdzv._rdzv")]
pub(crate) struct RpcRequest {
    /// The name of the function; empty for a value that is to be sent.
    #[pyo3(get)]
    function: Py<PyString>,
    /// The connection is the parent's, and it answers.
    own: Own<Request>,
}

struct Request {
    context: CallContext,
    content: Mutex<Option<Reply>>,
    value: Option<Arc<Kept>>,
    caller: Mutex<Option<Caller>>,
}

impl RpcRequest {
    pub(super) fn new(py: Python<'_>, arrived: Arrived) -> Self {
        let (function, content) = match arrived.call {
            Some(Call { function, content }) => (function, Some(content)),
            None => Default::default(),
        };
        Self {
            function: PyString::new(py, &function).unbind(),
            own: Own::new(Request {
                context: arrived.context,
                content: Mutex::new(content),
                value: arrived.value,
                caller: Mutex::new(Some(arrived.caller)),
            }),
        }
    }

    pub(super) fn context(&self) -> &CallContext {
        &self.own.context
    }

    fn answer(&self, answer: impl FnOnce(Caller) -> PyResult<()>) -> PyResult<()> {
        let caller = self.own.get("call")?.caller.lock().take();
        match caller {
            Some(caller) => answer(caller),
            None => Err(PyRuntimeError::new_err("the call was answered before")),
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
        named(self.own.context.caller())
    }

    /// Whether nobody waits for the result any more.
    #[getter]
    fn is_cancelled(&self) -> bool {
        self.own.context.cancellation().is_cancelled()
    }

    /// Whether the result is to be kept.
    #[getter]
    fn keeps(&self) -> bool {
        matches!(&*self.own.caller.lock(), Some(Caller::Keep(_)))
    }

    /// Whether a copy of `value` is to be sent.
    #[getter]
    fn sends(&self) -> bool {
        self.own.value.is_some()
    }

    /// Pickle, memory and references; can be taken once.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Content<'py>> {
        match self.own.content.lock().take() {
            Some(content) => incoming(py, content),
            None => Err(PyRuntimeError::new_err(
                "the call has no content, or it was taken",
            )),
        }
    }

    /// The value that is to be sent.
    #[getter]
    fn value(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.own.value.as_ref().map(|value| value.object(py))
    }

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
                Caller::Send(sender) => detach(py, || drop(sender.send(Ok(reply)))),
                Caller::Keep(_) => return Err(other()),
            }
            Ok(())
        })
    }

    /// Ends the connection of the caller.
    fn hang_up(&self, py: Python<'_>, reason: &str) {
        detach(py, || self.own.context.hang_up(reason));
    }

    /// Keeps the result.
    fn keep(&self, py: Python<'_>, value: Py<PyAny>) -> PyResult<()> {
        self.answer(|caller| match caller {
            Caller::Keep(sender) => {
                detach(py, || drop(sender.send(Ok(Kept(value)))));
                Ok(())
            }
            _ => Err(other()),
        })
    }

    /// Answers with an error.
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
                Caller::Keep(sender) => drop(sender.send(Err(kept_failure(kind, remote)))),
                Caller::Send(sender) => drop(sender.send(Err(kept_failure(kind, remote)))),
            });
            Ok(())
        })
    }
}
