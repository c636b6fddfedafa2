//! Calls as spans of `tracing`, one at each end, at the level DEBUG.
//!
//! Without a subscriber, a span costs one check.

use std::time::Instant;

use rdzv_rpc_proto::frame::Header;
use rdzv_rpc_proto::worker::WorkerInfo;
use tracing::Span;
use tracing::field::Empty;

use crate::payload::Answer;
use crate::wire::clock::micros;

/// One end of a call, from its start to its answer.
///
/// Fields:
///
/// - `trace`: 32 hexadecimal digits, which nested calls inherit
/// - `span`: the id of the call, the same at both ends
/// - `method`, `worker`: the method, and the worker at the other end
/// - `bytes_out`, `bytes_in`: sizes of the messages that this end sends and receives
/// - `queue_micros`: time spent waiting for a connection, for credit or for a thread
/// - `run_micros`: run time of the function; at the caller, the time from sending to the answer
#[derive(Debug, Clone)]
pub(crate) struct CallSpan {
    span: Span,
    /// `None` if no subscriber is interested in the span.
    since: Option<Instant>,
    serves: bool,
}

impl CallSpan {
    /// Creates the span of a call that this worker makes.
    pub(crate) fn client(
        trace: u128,
        id: u64,
        method: &'static str,
        worker: &WorkerInfo,
        bytes: usize,
    ) -> Self {
        let span = tracing::debug_span!(
            "rpc.client",
            trace = %format_args!("{trace:032x}"),
            span = id,
            method,
            worker = %worker.name,
            bytes_out = bytes,
            bytes_in = Empty,
            queue_micros = Empty,
            run_micros = Empty,
        );
        Self::new(span, false)
    }

    /// Creates the span of a call that this worker has received.
    pub(crate) fn server(
        header: &Header,
        method: &'static str,
        caller: &WorkerInfo,
        bytes: usize,
    ) -> Self {
        let span = tracing::debug_span!(
            "rpc.server",
            trace = %format_args!("{:032x}", header.trace),
            span = header.span,
            method,
            worker = %caller.name,
            bytes_out = Empty,
            bytes_in = bytes,
            queue_micros = Empty,
            run_micros = Empty,
        );
        Self::new(span, true)
    }

    fn new(span: Span, serves: bool) -> Self {
        let since = (!span.is_disabled()).then(Instant::now);
        Self {
            span,
            since,
            serves,
        }
    }

    /// Records the end of the wait: the request is sent, or the function begins.
    pub(crate) fn queue_over(&mut self) {
        if let Some(since) = self.since.as_mut() {
            self.span.record("queue_micros", micros(since.elapsed()));
            *since = Instant::now();
        }
    }

    pub(crate) fn over(&self, answer: &Answer) {
        let Some(since) = self.since else {
            return;
        };
        self.span.record("run_micros", micros(since.elapsed()));
        let bytes = answer.as_ref().map_or(0, |payload| payload.len());
        let field = if self.serves { "bytes_out" } else { "bytes_in" };
        self.span.record(field, bytes);
    }
}
