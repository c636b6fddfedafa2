//! The end of a call: by its reply, by its caller, or by its deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc_proto::frame::{Frame, FrameKind};

use super::Client;
use crate::bulk::remote_read;
use crate::channel::calls::{Call, Progress};
use crate::channel::failure::Refusal;
use crate::channel::request::time_is_over;
use crate::error::{RpcError, RpcErrorKind};
use crate::payload::Answer;
use crate::wire::clock;

impl Client {
    /// Handles a reply or an error from the callee.
    pub(super) fn replied(self: &Arc<Self>, mut frame: Frame) {
        // Borrowed even if the call has already ended: dropping `frame` then returns the memory.
        let borrowed = self.arenas.borrow(&mut frame);
        let id = frame.header.call;
        let mut calls = self.calls.lock();
        calls.abandoned.remove(&id);
        let Some(call) = calls.pending.take(id) else {
            drop(calls);
            // The reply came too late. Let the callee release the parts that it lent for this
            // reply.
            if remote_read::is_registered(&frame.parts) {
                let _ = self.tell(FrameKind::Release, id, &[]);
            }
            return;
        };
        let others_wait = calls.given_back(&call);
        drop(calls);
        if others_wait {
            self.advance();
        }
        if frame.header.kind == FrameKind::Error {
            let error = Refusal::into_error(&frame.body, call.method);
            return self.answer(call, Err(error));
        }
        if let Err(error) = borrowed {
            if remote_read::is_registered(&frame.parts) {
                let _ = self.tell(FrameKind::Release, id, &[]);
            }
            return self.answer(call, Err(error));
        }
        if !remote_read::is_registered(&frame.parts) {
            let answer = remote_read::gathered(frame, &self.lending);
            return self.answer(call, answer);
        }
        let client = Arc::clone(self);
        remote_read::fetch(&self.runtime, frame, &self.lending, move |answer| {
            let _ = client.tell(FrameKind::Release, id, &[]);
            client.answer(call, answer);
        });
    }

    /// Cancels a call whose caller no longer waits for the answer.
    pub(crate) fn cancel(self: &Arc<Self>, id: u64) {
        let call = self.calls.lock().give_up(id);
        let Some(call) = call else {
            return;
        };
        let text = "the call was cancelled by its caller";
        self.given_up(id, call, RpcError::new(RpcErrorKind::Cancelled, text));
    }

    /// Ends the calls whose deadline has passed, and returns the next deadline.
    pub(crate) fn expire(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let mut calls = self.calls.lock();
        let over = calls.expire(clock::mono(now));
        let next = calls.pending.first_deadline();
        drop(calls);
        for (id, call) in over {
            self.time_is_over(id, call);
        }
        next.map(clock::instant)
    }

    /// Ends a call whose deadline has passed, at the request of the waiting caller.
    pub(crate) fn time_over(self: &Arc<Self>, id: u64) {
        let call = self.calls.lock().give_up(id);
        if let Some(call) = call {
            self.time_is_over(id, call);
        }
    }

    fn time_is_over(self: &Arc<Self>, id: u64, call: Call) {
        let what = if call.progress != Progress::Waits {
            "no answer to the request arrived. If the call can take this long, give it a longer \
             timeout"
        } else {
            "the request was not sent, because earlier calls have reached the limit of calls in \
             flight. If the call can take this long, give it a longer timeout"
        };
        let error = time_is_over(call.timeout.unwrap_or_default(), what);
        self.given_up(id, call, error);
    }

    /// Ends an abandoned call with an error; if sent, cancels it at the callee.
    ///
    /// The callee may enforce a separate deadline, which begins when the request arrives.
    fn given_up(self: &Arc<Self>, id: u64, call: Call, error: RpcError) {
        if call.progress == Progress::IsSent {
            // The cancellation goes out before another call takes the credit, because the callee
            // counts calls too. If sending fails, the connection has ended, and the callee notices
            // that as well.
            let _ = self.tell(FrameKind::Cancel, id, &[]);
        }
        let mut calls = self.calls.lock();
        if call.progress == Progress::Waits
            && let Some(at) = calls.queue.iter().position(|request| request.id == id)
            && let Some(request) = calls.queue.remove(at)
        {
            request.sent.fill(());
        }
        let others_wait = calls.given_back(&call);
        drop(calls);
        self.answer(call, Err(error));
        if others_wait {
            self.advance();
        }
    }

    pub(super) fn answer(&self, call: Call, answer: Answer) {
        call.span.over(&answer);
        self.counters.answered(&answer);
        let whole = answer.map_err(|error| RpcError {
            worker: Some(self.worker.clone()),
            method: Some(call.method.to_owned()),
            message: with_time(error.kind, error.message, call.begun.elapsed()),
            ..error
        });
        // The call leaves the count first, so that a caller that has the answer never finds this
        // call in flight.
        let slot = Arc::clone(&call.slot);
        drop(call);
        slot.fill(whole);
    }
}

/// Text of an error, with the elapsed time of the call if that is useful.
fn with_time(kind: RpcErrorKind, text: String, elapsed: Duration) -> String {
    match kind {
        RpcErrorKind::PeerLost | RpcErrorKind::Stopping => {
            format!("{text} ({} ms after the call)", elapsed.as_millis())
        }
        _ => text,
    }
}
