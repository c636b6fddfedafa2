//! The calls of one connection that are not answered yet, and those that wait for room.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_core::rpc::calls::{CallTable, Credit};
use rdzv_core::time::Mono;

use super::lent::Lending;
use super::request::Request;
use crate::agent::clock;
use crate::agent::core::OnItsWay;
use crate::call::methods::Answer;
use crate::call::slot::Slot;
use crate::call::span::CallSpan;

/// A call on its way.
pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) slot: Arc<Slot<Answer>>,
    pub(super) begun: Instant,
    pub(super) timeout: Option<Duration>,
    pub(super) size: u64,
    /// Whether it counts against the limits.
    pub(super) counted: bool,
    /// Whether it has left the queue.
    pub(super) sent: bool,
    /// The parts that the callee reads out of our memory: they must not go away before.
    pub(super) lent: Vec<Bytes>,
    pub(super) span: CallSpan,
    _counted: Arc<OnItsWay>,
}

#[derive(Default)]
pub(super) struct Calls {
    pub(super) pending: CallTable<u64, Call>,
    pub(super) credit: Credit,
    pub(super) queue: VecDeque<Request>,
    /// Parts of calls that are given up, which the callee may be reading still.
    pub(super) abandoned: BTreeMap<u64, Vec<Bytes>>,
}

impl Calls {
    /// A call has begun: it waits for credit, or is about to be sent.
    pub(super) fn enter(&mut self, request: &Request, size: u64, counted: bool, sent: bool) {
        let deadline = request.until();
        let call = Call {
            method: request.method,
            slot: Arc::clone(&request.slot),
            begun: request.begun,
            timeout: request.timeout,
            size,
            counted,
            sent,
            lent: Vec::new(),
            span: request.span.clone(),
            _counted: Arc::clone(&request.counted),
        };
        // The number is new, so it is taken.
        let _ = self
            .pending
            .insert(request.id, call, deadline.map(clock::mono));
    }

    /// Takes a call out that nobody waits for any more.
    pub(super) fn give_up(&mut self, id: u64) -> Option<Call> {
        let mut call = self.pending.take(id)?;
        self.keep_for(id, &mut call);
        Some(call)
    }

    /// Takes the calls out whose time is over.
    pub(super) fn expire(&mut self, now: Mono) -> Vec<(u64, Call)> {
        let mut over: Vec<_> = self.pending.expire(now).collect();
        for (id, call) in &mut over {
            self.keep_for(*id, call);
        }
        over
    }

    /// Keeps what a call that was taken out has lent. At once, since the callee may say at any time that
    /// it has read it: whoever kept it after that would keep it for good.
    fn keep_for(&mut self, id: u64, call: &mut Call) {
        if !call.lent.is_empty() {
            self.abandoned.insert(id, std::mem::take(&mut call.lent));
        }
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
                waiting.sent = true;
                return Some(request);
            }
            // Given up meanwhile.
            self.credit.give_back(size);
        }
    }
}
