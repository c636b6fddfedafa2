//! Outgoing calls: sent immediately, queued until there is credit, or refused.

use std::sync::Arc;

use bytes::Bytes;
use rdzv_core::quantity::count;
use rdzv_lock::MutexGuard;
use rdzv_rpc_proto::frame::{FrameKind, Header};

use super::Client;
use crate::bulk::remote_read;
use crate::channel::calls::Progress;
use crate::channel::request::{Excess, READS_MEMORY, Request};
use crate::error::{RpcError, RpcErrorKind};
use crate::wire::clock::limit_micros;
use crate::wire::link::fail;

/// Maximum number of calls of a connection that wait for credit.
const MOST_WAITING: usize = 65_536;

/// Exclusive right to send requests over a connection.
pub(crate) struct Order<'a>(
    #[expect(dead_code, reason = "it is held, not used")] MutexGuard<'a, ()>,
);

impl Client {
    /// Sends or queues a request. Errors arrive in its slot.
    pub(crate) fn begin(self: &Arc<Self>, request: Request, excess: Excess) {
        self.begin_in(&self.order(), request, excess);
    }

    /// Acquires the right to send, so that requests leave in order.
    pub(crate) fn order(&self) -> Order<'_> {
        Order(self.order.lock())
    }

    /// Same as [`begin`](Self::begin), for a caller that sends several requests.
    pub(crate) fn begin_in(
        self: &Arc<Self>,
        _order: &Order<'_>,
        mut request: Request,
        excess: Excess,
    ) {
        let mut calls = self.calls.lock();
        if let Some(error) = self.link.ended() {
            let error = error.clone();
            drop(calls);
            return self.refuse(request, error);
        }
        let size = request.payload.len() as u64;
        let free = calls.queue.is_empty() && calls.credit.try_take(size);
        if free || excess == Excess::Send {
            request.lend = self.lending.lends();
            calls.enter(&request, size, free, Progress::Leaves);
            drop(calls);
            return self.transmit(request);
        }
        if excess == Excess::Refuse || calls.queue.len() >= MOST_WAITING {
            let (waiting, bytes) = (calls.queue.len(), calls.credit.bytes());
            let in_flight = calls.pending.len() - waiting;
            drop(calls);
            let text = format!(
                "the limit is reached: {} with {bytes} bytes in flight and {waiting} queued; wait \
                 for some of them before you make more",
                count(in_flight, "call")
            );
            return self.refuse(request, RpcError::new(RpcErrorKind::Overloaded, text));
        }
        // The timeout of the call already runs while the call waits.
        calls.enter(&request, size, false, Progress::Waits);
        calls.queue.push_back(request);
    }

    fn transmit(self: &Arc<Self>, mut request: Request) {
        request.span.queue_over();
        let left = request.timeout;
        let left = left.map(|timeout| timeout.saturating_sub(request.begun.elapsed()));
        let reads = if self.lending.reads_theirs() {
            READS_MEMORY
        } else {
            0
        };
        let header = Header {
            flags: request.flags | reads,
            call: request.id,
            method: request.number,
            deadline_micros: limit_micros(left),
            trace: request.trace,
            span: request.id,
            ..Header::new(FrameKind::Request)
        };
        // From here on the call counts as one that waits for its reply. The reply may arrive before
        // this function returns.
        drop(request.counted);
        let parts = remote_read::placed(request.payload.parts, request.lend, &self.arenas);
        self.keep(request.id, remote_read::kept(&parts));
        let sent = self.link.send(&header, &request.payload.body, parts);
        request.sent.fill(());
        if let Err(error) = sent {
            return fail(self, error);
        }
        let was_given_up = self.calls.lock().has_left(request.id);
        if let Some(credit) = was_given_up {
            // If sending fails, the connection has ended, and the callee notices that as well.
            let _ = self.tell(FrameKind::Cancel, request.id, &[]);
            // No other call waits for this credit, or the caller of `transmit` sends the next one.
            if let Some(size) = credit {
                self.calls.lock().credit.give_back(size);
            }
        }
    }

    /// Keeps the parts that the callee will read, even for an abandoned call.
    fn keep(&self, id: u64, parts: Vec<Bytes>) {
        if parts.is_empty() {
            return;
        }
        let mut calls = self.calls.lock();
        match calls.pending.get_mut(id) {
            Some(call) => call.registered = parts,
            None => drop(calls.abandoned.insert(id, parts)),
        }
    }

    fn refuse(&self, request: Request, error: RpcError) {
        request.fail(error.with_worker(self.worker.clone()));
    }

    /// Sends queued requests for which there is credit now.
    pub(super) fn advance(self: &Arc<Self>) {
        let _order = self.order();
        loop {
            let ready = self.calls.lock().next_ready(&self.lending);
            match ready {
                Some(request) => self.transmit(request),
                None => return,
            }
        }
    }
}
