//! Call that has arrived, for the thread of Python that executes it.

use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rdzv_lock::Mutex;
use rdzv_rpc::{CallContext, RemoteError, Responder};
use tokio::sync::oneshot::Sender;

use super::errors::{failure, kept_failure};
use super::message::{Call, Content, Reply};
use super::named;
use super::reference::{Kept, RpcReference};
use crate::handle::Own;
use crate::interrupt::detach;

/// Recipient of an answer.
pub(super) enum Caller {
    Call(Responder<Reply>),
    Keep(Sender<Result<Kept, RemoteError>>),
    Send(Sender<Result<Reply, RemoteError>>),
}

/// Call that has arrived. It fails if it is dropped without an answer.
pub(super) struct Arrived {
    context: CallContext,
    /// Name of the function; empty for a value that is to be sent.
    function: String,
    /// Content, until it is taken; `None` for a value that is to be sent.
    content: Mutex<Option<Reply>>,
    value: Option<Arc<Kept>>,
    /// Caller, until it has an answer.
    caller: Mutex<Option<Caller>>,
}

impl Arrived {
    pub(super) fn context(&self) -> &CallContext {
        &self.context
    }

    pub(super) fn new(
        context: CallContext,
        call: Option<Call>,
        value: Option<Arc<Kept>>,
        caller: Caller,
    ) -> Self {
        let (function, content) = match call {
            Some(Call { function, content }) => (function, Some(content)),
            None => Default::default(),
        };
        Self {
            context,
            function,
            content: Mutex::new(content),
            value,
            caller: Mutex::new(Some(caller)),
        }
    }
}

/// Call of another worker.
///
/// A forked child does not touch it: the parent has the connection, and answers.
#[pyclass(frozen, name = "RpcRequest", module = "rdzv._rdzv")]
pub(crate) struct RpcRequest(Own<Arrived>);

impl RpcRequest {
    pub(super) fn new(arrived: Arrived) -> Self {
        Self(Own::new(arrived))
    }

    pub(super) fn context(&self) -> &CallContext {
        &self.0.context
    }

    pub(super) fn name(&self) -> &str {
        match self.0.function.as_str() {
            "" => "a function",
            name => name,
        }
    }

    fn answer(&self, answer: impl FnOnce(Caller) -> PyResult<()>) -> PyResult<()> {
        let caller = self.0.get("call")?.caller.lock().take();
        match caller {
            Some(caller) => answer(caller),
            None => Err(PyRuntimeError::new_err("the call was already answered")),
        }
    }
}

fn other() -> PyErr {
    PyRuntimeError::new_err("the call requires another kind of answer")
}

#[pymethods]
impl RpcRequest {
    /// Returns the name of the function; empty for a value that is to be sent.
    #[getter]
    fn function(&self) -> &str {
        &self.0.function
    }

    /// Returns name and id of the caller.
    #[getter]
    fn caller(&self) -> (String, u32) {
        named(self.0.context.caller())
    }

    /// True if no worker waits for the result any more.
    #[getter]
    fn is_cancelled(&self) -> bool {
        self.0.context.cancellation().is_cancelled()
    }

    /// True if this worker keeps the result.
    #[getter]
    fn keeps(&self) -> bool {
        matches!(&*self.0.caller.lock(), Some(Caller::Keep(_)))
    }

    /// True if a copy of `value` is to be sent.
    #[getter]
    fn sends(&self) -> bool {
        self.0.value.is_some()
    }

    /// Returns pickle, memory and references, once.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Content<'py>> {
        match self.0.content.lock().take() {
            Some(content) => content.into_content(py),
            None => Err(PyRuntimeError::new_err(
                "the call has no content, or the content was already taken",
            )),
        }
    }

    /// Returns the value that is to be sent.
    #[getter]
    fn value(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.value.as_ref().map(|value| value.0.clone_ref(py))
    }

    fn reply(
        &self,
        py: Python<'_>,
        body: &Bound<'_, PyBytes>,
        parts: Vec<Bound<'_, PyAny>>,
        references: Vec<PyRef<'_, RpcReference>>,
    ) -> PyResult<()> {
        let reply = Reply::new(body, &parts, &references)?;
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
        detach(py, || self.0.context.hang_up(reason));
    }

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
