//! Unanswered calls of one connection, and the calls that wait for credit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_core::time::Mono;
use rdzv_rpc_proto::calls::{CallTable, Credit};

use crate::bulk::remote_read::Lending;
use crate::channel::in_flight::CountedCall;
use crate::channel::request::Request;
use crate::channel::slot::Slot;
use crate::channel::span::CallSpan;
use crate::payload::Answer;
use crate::wire::clock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The request waits for credit.
    Waits,
    /// The request is being sent.
    Leaves,
    /// The request has been sent, so the callee knows the call.
    IsSent,
}

/// A call that has begun and is not yet answered.
pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) slot: Arc<Slot<Answer>>,
    pub(super) begun: Instant,
    pub(super) timeout: Option<Duration>,
    pub(super) size: u64,
    /// `true` if the call counts against the limits of the connection.
    pub(super) counted: bool,
    pub(super) progress: Progress,
    /// Parts of the request that the callee reads from this process's memory.
    /// They must stay in memory until the callee has read them.
    pub(super) registered: Vec<Bytes>,
    pub(super) span: CallSpan,
    _counted: Arc<CountedCall>,
}

#[derive(Default)]
pub(super) struct Calls {
    pub(super) pending: CallTable<Call>,
    pub(super) credit: Credit,
    pub(super) queue: VecDeque<Request>,
    /// Parts of abandoned calls that the callee may still be reading.
    pub(super) abandoned: BTreeMap<u64, Vec<Bytes>>,
    /// Calls that were abandoned while they were being sent, with their credit.
    /// Such a call is cancelled only after its request has been sent, because a callee ignores the
    /// cancellation of an unknown call.
    hasty: BTreeMap<u64, Option<u64>>,
}

impl Calls {
    /// Registers a call that waits for credit or is about to be sent.
    pub(super) fn enter(
        &mut self,
        request: &Request,
        size: u64,
        counted: bool,
        progress: Progress,
    ) {
        let call = Call {
            method: request.method,
            slot: Arc::clone(&request.slot),
            begun: request.begun,
            timeout: request.timeout,
            size,
            counted,
            progress,
            registered: Vec::new(),
            span: request.span.clone(),
            _counted: Arc::clone(&request.counted),
        };
        let deadline = request.deadline().map(clock::mono);
        self.pending.insert(request.id, call, deadline);
    }

    /// Removes a call whose caller no longer waits for the answer.
    pub(super) fn give_up(&mut self, id: u64) -> Option<Call> {
        let mut call = self.pending.take(id)?;
        self.leave_behind(id, &mut call);
        Some(call)
    }

    /// Removes and returns the calls whose deadline has passed.
    pub(super) fn expire(&mut self, now: Mono) -> Vec<(u64, Call)> {
        let mut over: Vec<_> = self.pending.expire(now).collect();
        for (id, call) in &mut over {
            self.leave_behind(*id, call);
        }
        over
    }

    /// Records what is left to do for a call that was removed.
    ///
    /// This stores the lent parts immediately, because the callee can report at any time that it
    /// has read the parts. Parts that are stored after the report would never be released.
    fn leave_behind(&mut self, id: u64, call: &mut Call) {
        if call.progress == Progress::Leaves {
            let credit = std::mem::take(&mut call.counted).then_some(call.size);
            self.hasty.insert(id, credit);
        }
        if !call.registered.is_empty() {
            self.abandoned
                .insert(id, std::mem::take(&mut call.registered));
        }
    }

    /// Marks a call as sent.
    ///
    /// Returns `Some` if the call was abandoned while it was being sent. The sender then cancels
    /// the call at the callee, and afterwards releases the credit in the inner `Option`.
    pub(super) fn has_left(&mut self, id: u64) -> Option<Option<u64>> {
        if let Some(call) = self.pending.get_mut(id) {
            call.progress = Progress::IsSent;
        }
        self.hasty.remove(&id)
    }

    /// Releases the credit of a call that has ended.
    /// Returns `true` if other calls wait for credit.
    pub(super) fn given_back(&mut self, call: &Call) -> bool {
        if call.counted {
            self.credit.give_back(call.size);
        }
        !self.queue.is_empty()
    }

    /// Returns the first request in the queue, if there is credit for it now.
    ///
    /// Discards requests whose calls have ended.
    pub(super) fn next_ready(&mut self, lending: &Lending) -> Option<Request> {
        loop {
            let size = self.queue.front()?.payload.len() as u64;
            if !self.credit.try_take(size) {
                return None;
            }
            let mut request = self.queue.pop_front()?;
            if let Some(waiting) = self.pending.get_mut(request.id) {
                request.lend = lending.lends();
                waiting.counted = true;
                waiting.progress = Progress::Leaves;
                return Some(request);
            }
            // The call was abandoned while it waited in the queue.
            self.credit.give_back(size);
        }
    }
}

#[cfg(test)]
mod tests {
    use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};
    use rdzv_shm::Pool;

    use super::*;
    use crate::channel::in_flight::InFlight;
    use crate::payload::Payload;

    /// Makes more calls than the connection may have in flight, in order of ids.
    fn calls() -> Calls {
        let callee = WorkerInfo {
            id: WorkerId(1),
            name: WorkerName::new("callee").unwrap(),
        };
        let mut calls = Calls::default();
        for id in 0..300 {
            let request = Request {
                id,
                method: "nothing",
                number: 0,
                flags: 0,
                trace: 0,
                span: CallSpan::client(0, id, "nothing", &callee, 0),
                payload: Payload::default(),
                begun: Instant::now(),
                timeout: None,
                slot: Arc::default(),
                lend: false,
                sent: Arc::default(),
                counted: Arc::new(Arc::<InFlight>::default().begin()),
            };
            if calls.credit.try_take(0) {
                calls.enter(&request, 0, true, Progress::Leaves);
                assert_eq!(calls.has_left(id), None);
            } else {
                calls.enter(&request, 0, false, Progress::Waits);
                calls.queue.push_back(request);
            }
        }
        calls
    }

    #[test]
    fn the_callee_is_notified_of_a_cancelled_call_when_it_knows_it_and_not_before() {
        let lending = Lending::new(None, Pool::default());
        let mut calls = calls();
        // The first request was sent long ago, so the thread that cancels the call notifies the
        // callee.
        let first = calls.give_up(0).unwrap();
        assert_eq!(first.progress, Progress::IsSent);
        assert!(calls.given_back(&first), "others wait");
        // The free credit lets the next request leave. This call is cancelled while it is being
        // sent, so the sender notifies the callee, exactly once.
        let next = calls.next_ready(&lending).unwrap();
        let leaving = calls.give_up(next.id).unwrap();
        assert_eq!(leaving.progress, Progress::Leaves);
        // Until then its credit is not free: the callee would see one call more than the limit.
        let in_flight = calls.credit.calls();
        calls.given_back(&leaving);
        assert_eq!(calls.credit.calls(), in_flight);
        assert_eq!(calls.has_left(next.id), Some(Some(0)));
        assert_eq!(calls.has_left(next.id), None);
        // A call that still waits in the queue is never sent, so the callee needs no notice.
        let waiting = calls.give_up(299).unwrap();
        assert_eq!(waiting.progress, Progress::Waits);
        assert_eq!(calls.has_left(299), None);
    }
}
