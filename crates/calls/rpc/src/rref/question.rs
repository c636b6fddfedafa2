//! Requests for values: to the local register or by a call to the owner.

use std::sync::Arc;
use std::time::Instant;

use rdzv_rpc_proto::rref::{Fetch, FetchId, RRefId};

use super::kept::Made;
use super::register::{self, Register};
use crate::error::{RpcError, RpcErrorKind};
use crate::runtime::core::Core;
use crate::runtime::method::Method;

pub(super) const FETCH: &str = "rdzv.rref.fetch";

/// Beginning of the error for a value that did not exist in time.
pub(super) const QUESTION_OVER: &str = "the value does not exist yet: its function did not return";

pub(super) fn fetch_method<T>() -> Method<Fetch, T> {
    Method::new(FETCH)
}

/// Waits for a value that this worker keeps, and returns it.
///
/// Dropping the future withdraws the request.
pub(super) async fn answer(core: &Arc<Core>, question: Fetch) -> Made {
    struct Asking<'a>(&'a Arc<Core>, RRefId, FetchId, register::Answer);
    impl Drop for Asking<'_> {
        fn drop(&mut self) {
            Register::of(self.0).no_answer(self.0, self.1, self.2);
        }
    }
    let (fetch, answer) = Register::of(core).ask(core, question);
    let asking = Asking(core, question.rref, fetch, answer);
    std::future::poll_fn(|context| asking.3.poll(context)).await
}

/// Waits for a value like [`value`], from a blocking function.
///
/// # Errors
///
/// Returns the errors of [`value`], or [`RpcErrorKind::Deadline`] after the deadline.
pub(crate) fn wait_for_value<T: Send + Sync + 'static>(
    core: &Arc<Core>,
    question: Fetch,
    deadline: Option<Instant>,
) -> Result<Arc<T>, RpcError> {
    let (fetch, answer) = Register::of(core).ask(core, question);
    answer.park(deadline);
    let Some(made) = answer.take() else {
        Register::of(core).no_answer(core, question.rref, fetch);
        let text = format!("{QUESTION_OVER} before the timeout of the call");
        return Err(RpcError::new(RpcErrorKind::Deadline, text));
    };
    made?.get()
}

/// Waits for the requested value, and returns it.
///
/// # Errors
///
/// Returns the reason why there is no value, or the error of the function that should have created
/// it.
pub(crate) async fn value<T: Send + Sync + 'static>(
    core: &Arc<Core>,
    question: Fetch,
) -> Result<Arc<T>, RpcError> {
    answer(core, question).await?.get()
}
