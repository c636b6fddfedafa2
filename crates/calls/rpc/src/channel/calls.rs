//! The calls of one connection that are not answered yet, and those that wait for room.

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

/// How far the request of a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for credit.
    Waits,
    /// It is being sent.
    Leaves,
    /// It is sent: the callee knows it.
    IsSent,
}

/// A call on its way.
pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) slot: Arc<Slot<Answer>>,
    pub(super) begun: Instant,
    pub(super) timeout: Option<Duration>,
    pub(super) size: u64,
    /// `true` if it counts against the limits.
    pub(super) counted: bool,
    pub(super) progress: Progress,
    /// The parts that the callee reads out of our memory: they must not go away before.
    pub(super) registered: Vec<Bytes>,
    pub(super) span: CallSpan,
    _counted: Arc<CountedCall>,
}

#[derive(Default)]
pub(super) struct Calls {
    pub(super) pending: CallTable<Call>,
    pub(super) credit: Credit,
    pub(super) queue: VecDeque<Request>,
    /// Parts of calls that are given up, which the callee may be reading still.
    pub(super) abandoned: BTreeMap<u64, Vec<Bytes>>,
    /// Calls that were given up while they were being sent, and what they have of the credit: the
    /// callee is told after that, since it would forget a word about a call that it does not know
    /// yet.
    hasty: BTreeMap<u64, Option<u64>>,
}

impl Calls {
    /// A call has begun: it waits for credit, or is about to be sent.
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
        let deadline = request.until().map(clock::mono);
        self.pending.insert(request.id, call, deadline);
    }

    /// Takes a call out that nobody waits for any more.
    pub(super) fn give_up(&mut self, id: u64) -> Option<Call> {
        let mut call = self.pending.take(id)?;
        self.leave_behind(id, &mut call);
        Some(call)
    }

    /// Takes the calls out whose time is over.
    pub(super) fn expire(&mut self, now: Mono) -> Vec<(u64, Call)> {
        let mut over: Vec<_> = self.pending.expire(now).collect();
        for (id, call) in &mut over {
            self.leave_behind(*id, call);
        }
        over
    }

    /// Notes what a call that was taken out leaves to be done.
    ///
    /// What it has lent is kept at once, since the callee may say at any time that it has read it:
    /// whoever kept it after that would keep it for good.
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

    /// A call is sent now.
    ///
    /// Says whether it was given up meanwhile: then the callee has to be told, and what the call
    /// has of the credit is to be given back after that.
    pub(super) fn has_left(&mut self, id: u64) -> Option<Option<u64>> {
        if let Some(call) = self.pending.get_mut(id) {
            call.progress = Progress::IsSent;
        }
        self.hasty.remove(&id)
    }

    /// A call is over. Says whether others wait for the room that it leaves.
    pub(super) fn given_back(&mut self, call: &Call) -> bool {
        if call.counted {
            self.credit.give_back(call.size);
        }
        !self.queue.is_empty()
    }

    /// The next request that has waited and has room now.
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
            // Given up meanwhile.
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

    /// More calls than may be on their way at a time, made one after the other.
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
        // Sent long ago: whoever cancels it tells the callee.
        let first = calls.give_up(0).unwrap();
        assert_eq!(first.progress, Progress::IsSent);
        assert!(calls.given_back(&first), "others wait");
        // That makes room for one more. Cancelled while it is being sent, it is told by who sends
        // it, once.
        let next = calls.next_ready(&lending).unwrap();
        let leaving = calls.give_up(next.id).unwrap();
        assert_eq!(leaving.progress, Progress::Leaves);
        // Until then nothing takes its place: the callee would see one more than may be on their
        // way.
        let in_flight = calls.credit.calls();
        calls.given_back(&leaving);
        assert_eq!(calls.credit.calls(), in_flight);
        assert_eq!(calls.has_left(next.id), Some(Some(0)));
        assert_eq!(calls.has_left(next.id), None);
        // One that waits still is never sent, and nobody is told.
        let waiting = calls.give_up(299).unwrap();
        assert_eq!(waiting.progress, Progress::Waits);
        assert_eq!(calls.has_left(299), None);
    }
}
