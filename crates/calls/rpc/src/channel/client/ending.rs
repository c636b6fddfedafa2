//! How a call ends: with its reply, by its caller, or when its time is over.

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
    /// A reply has come, or an error.
    pub(super) fn replied(self: &Arc<Self>, mut frame: Frame) {
        // Also if nobody waits for it any more: then it is given back at once.
        let borrowed = self.arenas.borrow(&mut frame);
        let id = frame.header.call;
        let mut calls = self.calls.lock();
        calls.abandoned.remove(&id);
        let Some(call) = calls.pending.take(id) else {
            drop(calls);
            // It came too late; what the callee lent for it is not needed.
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

    /// Nobody waits for this call any more.
    pub(crate) fn cancel(self: &Arc<Self>, id: u64) {
        let call = self.calls.lock().give_up(id);
        let Some(call) = call else {
            return;
        };
        let text = "the call was cancelled by its caller";
        self.given_up(id, call, RpcError::new(RpcErrorKind::Cancelled, text));
    }

    /// Ends the calls whose time is over; says when the next one's is.
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

    /// The time of this call is over, as whoever waits for it has noticed.
    pub(crate) fn time_over(self: &Arc<Self>, id: u64) {
        let call = self.calls.lock().give_up(id);
        if let Some(call) = call {
            self.time_is_over(id, call);
        }
    }

    fn time_is_over(self: &Arc<Self>, id: u64, call: Call) {
        let what = if call.progress != Progress::Waits {
            "it was sent and not answered. If it may take so long, give the call a longer timeout"
        } else {
            "it was not sent, since earlier calls use up what may be on its way. If it may take so \
             long, give the call a longer timeout"
        };
        let error = time_is_over(call.timeout.unwrap_or_default(), what);
        self.given_up(id, call, error);
    }

    /// A call that was given up ends with an error of ours, and the callee is told.
    ///
    /// It may have a deadline of its own, which begins when the request arrives.
    fn given_up(self: &Arc<Self>, id: u64, call: Call, error: RpcError) {
        if call.progress == Progress::IsSent {
            // Before another call takes its place: the callee counts too. If it cannot be told the
            // connection is over, and the callee knows anyway.
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
        // Nobody finds a call that is answered still on its way.
        let slot = Arc::clone(&call.slot);
        drop(call);
        slot.fill(whole);
    }
}

/// The text of an error, with the time that the call had taken where it says something.
fn with_time(kind: RpcErrorKind, text: String, elapsed: Duration) -> String {
    match kind {
        RpcErrorKind::PeerLost | RpcErrorKind::Stopping => {
            format!("{text} ({} ms after the call)", elapsed.as_millis())
        }
        _ => text,
    }
}
