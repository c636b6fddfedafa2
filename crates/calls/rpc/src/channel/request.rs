//! A call before it is sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc_proto::frame::{FrameLimits, PartHead};

use crate::channel::in_flight::CountedCall;
use crate::channel::slot::Slot;
use crate::channel::span::CallSpan;
use crate::error::{RpcError, RpcErrorKind};
use crate::payload::{Answer, Payload};

/// Flag of a request: the caller can read the callee's memory.
pub(crate) const READS_MEMORY: u16 = 1;

/// Flag of a request: the first 8 bytes of the body are the key of its line.
pub(crate) const IN_LINE: u16 = 2;

/// Flag of a request: part of a call that already counts at its caller.
/// The callee applies separate, larger limits to nested requests.
pub(crate) const NESTED: u16 = 4;

/// A call before it is sent.
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) method: &'static str,
    pub(crate) number: u64,
    pub(crate) flags: u16,
    pub(crate) trace: u128,
    pub(crate) span: CallSpan,
    pub(crate) payload: Payload,
    pub(crate) begun: Instant,
    pub(crate) timeout: Option<Duration>,
    pub(crate) slot: Arc<Slot<Answer>>,
    /// `true` if the callee reads the large parts from this process's memory.
    /// The value is known when the request leaves the queue.
    pub(crate) lend: bool,
    /// Filled when the request has been sent or can no longer be sent.
    pub(crate) sent: Arc<Slot<()>>,
    /// Counts the call until it is sent; its entry in `Calls` shares the guard.
    pub(crate) counted: Arc<CountedCall>,
}

impl Request {
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timeout.map(|timeout| self.begun + timeout)
    }

    /// Ends a call that was not sent, with an error.
    pub(crate) fn fail(self, error: RpcError) {
        // The call leaves the count first, so that a caller that has its answer never finds this
        // call in flight.
        drop(self.counted);
        self.slot.fill(Err(error.with_method(self.method)));
        self.sent.fill(());
    }
}

pub(crate) fn check_size(limits: &FrameLimits, payload: &Payload) -> Result<(), RpcError> {
    let heads: Vec<_> = payload
        .parts
        .iter()
        .map(|part| PartHead::inline(part.len() as u64))
        .collect();
    limits.check(payload.body.len(), &heads).map_err(|error| {
        let text = format!(
            "the message is too large: {error}; to allow a larger total, raise `message_limit` of \
             `RpcOptions` on all workers"
        );
        RpcError::invalid(text)
    })
}

/// Action for a request when the limits are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excess {
    /// Send the request anyway: it is part of a call that already counts.
    Send,
    Queue,
    Refuse,
}

/// Returns the error of a call whose deadline has passed.
pub(crate) fn time_is_over(limit: Duration, what: &str) -> RpcError {
    let limit = in_milliseconds(limit);
    let text = format!(
        "RPC ran for more than set timeout ({limit} ms) and will now be marked with an error; {what}"
    );
    RpcError::new(RpcErrorKind::Deadline, text)
}

/// Formats a time in milliseconds, as the messages about timeouts show it.
fn in_milliseconds(limit: Duration) -> String {
    let micros = limit.as_micros();
    if micros.is_multiple_of(1000) {
        (micros / 1000).to_string()
    } else {
        format!("{}.{:03}", micros / 1000, micros % 1000)
    }
}
