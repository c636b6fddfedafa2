//! The calling side of a connection: calls that wait for their reply.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_core::rpc::frame::{Frame, FrameKind, Header, Limits};
use rdzv_core::rpc::worker::WorkerInfo;

use super::calls::{Call, Calls};
use super::lent::{self, Lending};
use super::link::{Endpoint, Link, fail};
use super::request::{Excess, READS_MEMORY, Request, time_is_over};
use super::waiting::Bell;
use crate::agent::clock;
use crate::agent::core::Core;
use crate::call::failure::Refusal;
use crate::call::methods::Answer;
use crate::error::{RpcError, RpcErrorKind};

/// So many calls wait for credit at the most; more are refused.
const MOST_WAITING: usize = 65_536;

/// The right to send requests over a connection.
pub(crate) struct Order<'a>(
    #[expect(dead_code, reason = "it is held, not used")] MutexGuard<'a, ()>,
);

/// The calling side of a connection.
pub(crate) struct Client {
    link: Link,
    core: Weak<Core>,
    worker: WorkerInfo,
    pub(crate) lending: Arc<Lending>,
    calls: Mutex<Calls>,
    /// Held from the decision to send a request until it is sent. Taken before `calls`.
    order: Mutex<()>,
    /// How much it has paid lately to look for a reply before sleeping; see `waiting`.
    pub(crate) patience: AtomicU32,
    /// Wakes the thread that holds the helm and sleeps, when another one has filled its slot.
    pub(crate) bell: Arc<Bell>,
}

impl Client {
    pub(crate) fn new(
        link: Link,
        core: Weak<Core>,
        worker: WorkerInfo,
        lending: Lending,
    ) -> std::io::Result<Self> {
        let bell = Arc::new(Bell::new()?);
        Ok(Self {
            link,
            core,
            worker,
            lending: Arc::new(lending),
            calls: Mutex::default(),
            order: Mutex::default(),
            patience: AtomicU32::new(super::waiting::PATIENCE),
            bell,
        })
    }

    /// The worker at the other end.
    pub(crate) fn worker(&self) -> &WorkerInfo {
        &self.worker
    }

    /// How many calls wait for their reply.
    pub(crate) fn in_flight(&self) -> usize {
        self.calls().pending.len()
    }

    /// How many bytes of them.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.calls().credit.bytes()
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request, or lets it wait. What goes wrong arrives in the slot.
    pub(crate) fn begin(self: &Arc<Self>, request: Request, excess: Excess) {
        self.begin_in(&self.order(), request, excess);
    }

    /// The right to send requests: they leave in the order in which they were made.
    pub(crate) fn order(&self) -> Order<'_> {
        Order(self.order.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// [`begin`](Self::begin) for somebody who has several.
    pub(crate) fn begin_in(
        self: &Arc<Self>,
        _order: &Order<'_>,
        mut request: Request,
        excess: Excess,
    ) {
        let mut calls = self.calls();
        if let Some(error) = self.link.ended() {
            let error = error.clone();
            drop(calls);
            return self.refuse(request, error);
        }
        let size = request.payload.len() as u64;
        let free = calls.queue.is_empty() && calls.credit.try_take(size);
        if free || excess == Excess::Send {
            request.lend = self.lending.lends();
            calls.enter(&request, size, free, true);
            drop(calls);
            return self.transmit(request);
        }
        if excess == Excess::Refuse || calls.queue.len() >= MOST_WAITING {
            let (in_flight, bytes) = (calls.pending.len(), calls.credit.bytes());
            let waiting = calls.queue.len();
            drop(calls);
            let text = format!(
                "{in_flight} calls with {bytes} bytes are on their way to it and {waiting} wait, \
                 which is the limit: wait for some of them before making more"
            );
            return self.refuse(request, RpcError::new(RpcErrorKind::Overloaded, text));
        }
        // Its time runs while it waits.
        calls.enter(&request, size, false, false);
        calls.queue.push_back(request);
    }

    /// Tells the callee something that has no answer.
    pub(crate) fn tell(&self, kind: FrameKind, call: u64, body: &[u8]) -> Result<(), RpcError> {
        let header = Header {
            call,
            ..Header::new(kind)
        };
        self.link.send(&header, body, Vec::new())
    }

    fn transmit(self: &Arc<Self>, mut request: Request) {
        request.span.queue_over();
        let left = request.timeout.map_or(0, |timeout| {
            let left = timeout.saturating_sub(request.begun.elapsed());
            u64::try_from(left.as_micros()).unwrap_or(u64::MAX).max(1)
        });
        let reads = if self.lending.reads_theirs() {
            READS_MEMORY
        } else {
            0
        };
        let header = Header {
            flags: request.flags | reads,
            call: request.id,
            method: request.number,
            deadline_micros: left,
            trace: request.trace,
            span: request.id,
            ..Header::new(FrameKind::Request)
        };
        // From here on it counts as a call that waits for its reply, which may be quicker than we are.
        drop(request.counted);
        let parts = lent::placed(request.payload.parts, request.lend, &self.link.arenas);
        self.keep(request.id, lent::kept(&parts));
        let sent = self.link.send(&header, &request.payload.body, parts);
        request.sent.fill(());
        if let Err(error) = sent {
            fail(self, error);
        }
    }

    /// Keeps the parts of a request that the callee is about to read, also if it is given up.
    fn keep(&self, id: u64, parts: Vec<Bytes>) {
        if parts.is_empty() {
            return;
        }
        let mut calls = self.calls();
        match calls.pending.get_mut(id) {
            Some(call) => call.lent = parts,
            None => drop(calls.abandoned.insert(id, parts)),
        }
    }

    fn refuse(&self, request: Request, error: RpcError) {
        request.fail(error.with_worker(self.worker.clone()));
    }

    /// Nobody waits for this call any more.
    pub(crate) fn cancel(self: &Arc<Self>, id: u64) {
        let call = self.calls().pending.take(id);
        let Some(call) = call else {
            return;
        };
        let sent = call.sent;
        let text = "the call was cancelled by its caller";
        self.given_up(id, call, RpcError::new(RpcErrorKind::Cancelled, text));
        if sent {
            // If it cannot be told the connection is over, and the callee knows anyway.
            let _ = self.tell(FrameKind::Cancel, id, &[]);
        }
    }

    /// Ends the calls whose time is over; says when the next one's is.
    pub(crate) fn expire(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let mut calls = self.calls();
        let over: Vec<_> = calls.pending.expire(clock::mono(now)).collect();
        let next = calls.pending.arm();
        drop(calls);
        for (id, call) in over {
            self.time_is_over(id, call);
        }
        next.map(clock::instant)
    }

    /// The time of this call is over, as whoever waits for it has noticed.
    pub(crate) fn time_over(self: &Arc<Self>, id: u64) {
        let call = self.calls().pending.take(id);
        if let Some(call) = call {
            self.time_is_over(id, call);
        }
    }

    fn time_is_over(self: &Arc<Self>, id: u64, call: Call) {
        let what = if call.sent {
            "it was sent and not answered. If it may take so long, give the call a longer timeout"
        } else {
            "it was not sent, since earlier calls use up what may be on its way. If it may take so \
             long, give the call a longer timeout"
        };
        let sent = call.sent;
        let error = time_is_over(call.timeout.unwrap_or_default(), what);
        self.given_up(id, call, error);
        if sent {
            // The callee has a deadline of its own, which begins when the request arrives.
            let _ = self.tell(FrameKind::Cancel, id, &[]);
        }
    }

    /// A call that was taken out ends with an error of ours.
    fn given_up(self: &Arc<Self>, id: u64, mut call: Call, error: RpcError) {
        let mut calls = self.calls();
        if !call.sent {
            if let Some(at) = calls.queue.iter().position(|request| request.id == id)
                && let Some(request) = calls.queue.remove(at)
            {
                request.sent.fill(());
            }
        } else if !call.lent.is_empty() {
            let lent = std::mem::take(&mut call.lent);
            calls.abandoned.insert(id, lent);
        }
        let others_wait = calls.given_back(&call);
        drop(calls);
        self.answer(call, Err(error));
        if others_wait {
            self.advance();
        }
    }

    /// Sends requests that have waited, as far as there is room for them now.
    fn advance(self: &Arc<Self>) {
        let _order = self.order();
        loop {
            let ready = self.calls().next_ready(&self.lending);
            match ready {
                Some(request) => self.transmit(request),
                None => return,
            }
        }
    }

    /// A reply has come, or an error.
    fn replied(self: &Arc<Self>, mut frame: Frame) {
        // Also if nobody waits for it any more: then it is given back at once.
        let borrowed = self.link.arenas.borrow(&mut frame);
        let id = frame.header.call;
        let mut calls = self.calls();
        calls.abandoned.remove(&id);
        let Some(call) = calls.pending.take(id) else {
            drop(calls);
            // It came too late; what the callee lent for it is not needed.
            if lent::is_lent(&frame.parts) {
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
            if lent::is_lent(&frame.parts) {
                let _ = self.tell(FrameKind::Release, id, &[]);
            }
            return self.answer(call, Err(error));
        }
        if !lent::is_lent(&frame.parts) {
            let answer = lent::gathered(frame, &self.lending);
            return self.answer(call, answer);
        }
        let client = Arc::clone(self);
        let Some(core) = self.core.upgrade() else {
            return self.answer(call, Err(stopping()));
        };
        lent::fetch(&core, frame, &self.lending, move |answer| {
            let _ = client.tell(FrameKind::Release, id, &[]);
            client.answer(call, answer);
        });
    }

    fn answer(&self, call: Call, answer: Answer) {
        call.span.over(&answer);
        if let Some(core) = self.core.upgrade() {
            core.counters.answered(&answer);
        }
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

impl Endpoint for Client {
    fn link(&self) -> &Link {
        &self.link
    }

    fn take(self: Arc<Self>, frame: Frame) -> Option<Limits> {
        match frame.header.kind {
            FrameKind::Reply | FrameKind::Error => self.replied(frame),
            FrameKind::Release if !frame.body.is_empty() => {
                if let Err(error) = self.link.arenas.returned(&frame.body) {
                    fail(&self, error);
                }
            }
            FrameKind::Release => {
                let mut calls = self.calls();
                let id = frame.header.call;
                calls.abandoned.remove(&id);
                if let Some(call) = calls.pending.get_mut(id) {
                    call.lent.clear();
                }
            }
            FrameKind::Pong => self.lending.pong(&frame.body),
            FrameKind::GoAway => {
                let reason = rdzv_core::rpc::frame::refusal::reason(&frame.body);
                let text = if reason.is_empty() {
                    "the worker is shutting down".to_owned()
                } else {
                    format!("the worker has closed the connection: {reason}")
                };
                fail(&self, RpcError::new(RpcErrorKind::PeerLost, text));
            }
            kind => {
                let text = format!("the worker sent a {kind:?} where replies come only");
                fail(&self, RpcError::new(RpcErrorKind::Protocol, text));
            }
        }
        None
    }

    fn lost(self: Arc<Self>, error: RpcError) {
        let mut calls = self.calls();
        let queue = std::mem::take(&mut calls.queue);
        let pending: Vec<_> = calls.pending.drain().collect();
        calls.abandoned.clear();
        drop(calls);
        for request in queue {
            request.sent.fill(());
        }
        for (_, call) in pending {
            self.answer(call, Err(error.clone()));
        }
        if let Some(core) = self.core.upgrade() {
            core.connection_lost(&self, &error);
        }
    }
}

fn stopping() -> RpcError {
    RpcError::new(RpcErrorKind::Stopping, "this worker is shutting down")
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
