//! The answering side of a connection: from a request to its reply.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use rdzv_core::rpc::frame::{Frame, FrameKind, Header, Limits};
use rdzv_core::rpc::rref::Member as Holder;
use rdzv_core::rpc::worker::WorkerInfo;

use super::greeting::Greeting;
use super::lent::{self, Lending};
use super::link::{Endpoint, Link, fail};
use super::request::{IN_LINE, READS_MEMORY};
use crate::agent::core::Core;
use crate::call::cancellation::Cancellation;
use crate::call::context::CallContext;
use crate::call::failure::Refusal;
use crate::call::methods::{Answer, Handler, Running};
use crate::call::span::CallSpan;
use crate::error::{RpcError, RpcErrorKind};
use crate::payload::Payload;

/// So many requests of one caller are worked on at the most. Callers stay far below by themselves.
const MOST_SERVED: usize = 65_536;

/// The answering side of a connection.
pub(crate) struct Server {
    link: Link,
    core: Weak<Core>,
    /// None for the connection of a worker with itself.
    greeting: Mutex<Option<Greeting>>,
    caller: OnceLock<Caller>,
    served: Mutex<Served>,
}

/// Who calls.
pub(crate) struct Caller {
    pub(crate) worker: WorkerInfo,
    pub(crate) incarnation: u64,
    pub(crate) lending: Arc<Lending>,
}

#[derive(Default)]
struct Served {
    /// Requests that are not begun yet, since their parts are being read or others of their line come
    /// first; and whether they are cancelled.
    waiting: BTreeMap<u64, bool>,
    running: BTreeMap<u64, Cancellation>,
    /// Parts of replies that the caller has not read yet.
    lent: BTreeMap<u64, Vec<Bytes>>,
    /// Requests that stand in a line, behind the one that is worked on.
    lines: BTreeMap<u64, VecDeque<Job>>,
}

/// A request that is about to be worked on.
struct Job {
    header: Header,
    payload: Payload,
    line: Option<u64>,
    deadline: Option<Instant>,
}

impl Caller {
    /// The caller as one who holds references.
    pub(crate) fn holder(&self) -> Holder {
        Holder {
            id: self.worker.id,
            incarnation: self.incarnation,
        }
    }
}

impl Server {
    pub(crate) fn new(link: Link, core: Weak<Core>, greeting: Greeting) -> Self {
        Self {
            link,
            core,
            greeting: Mutex::new(Some(greeting)),
            caller: OnceLock::new(),
            served: Mutex::default(),
        }
    }

    /// The connection of a worker with itself.
    pub(crate) fn oneself(link: Link, core: &Core) -> Self {
        let caller = Caller {
            worker: core.me.clone(),
            incarnation: core.incarnation,
            lending: Arc::new(Lending::new(link.process, core.pool.clone())),
        };
        Self {
            link,
            core: core.weak(),
            greeting: Mutex::new(None),
            caller: caller.into(),
            served: Mutex::default(),
        }
    }

    /// Whether the connection is over.
    pub(crate) fn is_over(&self) -> bool {
        self.link.ended().is_some()
    }

    /// Whether it has not said who it is in time.
    pub(crate) fn is_stalling(&self, now: Instant) -> bool {
        self.greeted_until().is_some_and(|until| until <= now)
    }

    /// When it has to have said who it is.
    pub(crate) fn greeted_until(&self) -> Option<Instant> {
        if self.caller.get().is_some() {
            return None;
        }
        self.greeting().as_ref().map(Greeting::until)
    }

    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn greeting(&self) -> MutexGuard<'_, Option<Greeting>> {
        self.greeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with the greeting.
    fn greet(self: &Arc<Self>, frame: &Frame) -> Result<(), RpcError> {
        let said = match self.greeting().as_mut() {
            Some(greeting) => greeting.take(frame)?,
            None => return Ok(()),
        };
        for (kind, body) in said.answers {
            self.link.send(&Header::new(kind), &body, Vec::new())?;
        }
        if let (Some(peer), Some(core)) = (said.peer, self.core.upgrade()) {
            let near = core.near(&peer, self.link.process);
            let caller = Caller {
                worker: peer.worker,
                incarnation: peer.incarnation,
                lending: Arc::new(Lending::new(near, core.pool.clone())),
            };
            core.caller_known(&caller);
            // It is set once: the greeting ends with it.
            let _ = self.caller.set(caller);
        }
        Ok(())
    }

    fn request(self: &Arc<Self>, caller: &Caller, mut frame: Frame) -> Result<(), RpcError> {
        let header = frame.header;
        if self.served().running.len() >= MOST_SERVED {
            let text = format!("it has {MOST_SERVED} requests open here, which is the limit");
            return Err(RpcError::new(RpcErrorKind::Protocol, text));
        }
        if header.flags & READS_MEMORY != 0 {
            caller.lending.is_read();
        }
        let deadline = (header.deadline_micros > 0)
            .then(|| Instant::now() + Duration::from_micros(header.deadline_micros));
        if let Err(error) = self.link.arenas.borrow(&mut frame) {
            self.reply(&header, Err(error));
            return Ok(());
        }
        if !lent::is_lent(&frame.parts) {
            let payload = lent::gathered(frame, &caller.lending)?;
            self.queue(header, payload, deadline);
            return Ok(());
        }
        let Some(core) = self.core.upgrade() else {
            return Ok(());
        };
        self.served().waiting.insert(header.call, false);
        let server = Arc::clone(self);
        lent::fetch(&core, frame, &caller.lending, move |payload| {
            server.fetched(header, payload, deadline);
        });
        Ok(())
    }

    /// The lent parts of a request are here.
    fn fetched(self: &Arc<Self>, header: Header, payload: Answer, deadline: Option<Instant>) {
        // A caller that is gone may have had other things in its memory already.
        if self.link.is_hung_up() {
            return;
        }
        match payload {
            Ok(payload) => {
                let release = Header {
                    call: header.call,
                    ..Header::new(FrameKind::Release)
                };
                match self.link.send(&release, &[], Vec::new()) {
                    Ok(()) => self.queue(header, payload, deadline),
                    Err(error) => fail(self, error),
                }
            }
            Err(error) => {
                self.served().waiting.remove(&header.call);
                self.reply(&header, Err(error));
            }
        }
    }

    /// Works on a request, unless others of its line are before it.
    fn queue(self: &Arc<Self>, header: Header, mut payload: Payload, deadline: Option<Instant>) {
        let line = (header.flags & IN_LINE != 0 && payload.body.len() >= 8)
            .then(|| payload.body.get_u64_le());
        let job = Job {
            header,
            payload,
            line,
            deadline,
        };
        if let Some(key) = line {
            let mut served = self.served();
            match served.lines.get_mut(&key) {
                Some(behind) => {
                    behind.push_back(job);
                    served.waiting.entry(header.call).or_default();
                    return;
                }
                None => drop(served.lines.insert(key, VecDeque::new())),
            }
        }
        self.work(job);
    }

    /// Works on a request until it is answered or has to wait for something.
    fn work(self: &Arc<Self>, job: Job) {
        let mut next = Some(job);
        // In a line one follows the other; a loop, since each may be answered at once.
        while let Some(job) = next.take() {
            let (header, line) = (job.header, job.line);
            if let Some(answer) = self.start(job) {
                self.reply(&header, answer);
                next = self.next_in(line);
            }
        }
    }

    /// A request of this line is answered; the next one of it.
    fn next_in(&self, line: Option<u64>) -> Option<Job> {
        let key = line?;
        let mut served = self.served();
        let next = served.lines.get_mut(&key)?.pop_front();
        if next.is_none() {
            served.lines.remove(&key);
        }
        next
    }

    /// Starts the function; its answer, if it has it at once.
    fn start(self: &Arc<Self>, job: Job) -> Option<Answer> {
        if self.served().waiting.remove(&job.header.call) == Some(true) {
            return Some(Err(cancelled()));
        }
        let (Some(core), Some(caller)) = (self.core.upgrade(), self.caller.get()) else {
            return Some(Err(stopping()));
        };
        if core.is_stopped() {
            return Some(Err(stopping()));
        }
        let Some((name, handler)) = core.methods.find(job.header.method) else {
            let refusal = Refusal::no_such_method(core.methods.listed());
            self.send_error(job.header.call, &refusal);
            self.work_on(self.next_in(job.line));
            return None;
        };
        if job
            .deadline
            .is_some_and(|deadline| deadline <= Instant::now())
        {
            return Some(Err(expired()));
        }
        core.counters.served();
        let bytes = job.payload.len();
        let mut span = CallSpan::server(&job.header, name, &caller.worker, bytes);
        let cancellation = Cancellation::until(job.deadline);
        let context = CallContext {
            agent: core.handle(),
            caller: caller.worker.clone(),
            caller_incarnation: caller.incarnation,
            deadline: job.deadline,
            cancellation: cancellation.clone(),
            trace: job.header.trace,
        };
        let (header, line) = (job.header, job.line);
        match handler {
            Handler::Async(start) => {
                span.queue_over();
                let mut running = start(context, job.payload);
                let mut nobody = Context::from_waker(Waker::noop());
                if let Poll::Ready(answer) = running.as_mut().poll(&mut nobody) {
                    span.over(&answer);
                    return Some(answer);
                }
                core.counters.runs();
                self.runs(header.call, &cancellation);
                let server = Arc::clone(self);
                let under_way = core.under_way.begin();
                core.spawn(async move {
                    let answer = to_the_end(running, job.deadline, &cancellation).await;
                    span.over(&answer);
                    server.finished(&header, line, answer);
                    drop(under_way);
                });
            }
            Handler::Blocking(_) => {
                core.counters.runs();
                self.runs(header.call, &cancellation);
                let server = Arc::clone(self);
                let within = Arc::clone(&core);
                core.spawn_blocking(move || {
                    span.queue_over();
                    let answer = match within.methods.find(header.method) {
                        _ if cancellation.is_cancelled() => Err(expired()),
                        Some((_, Handler::Blocking(run))) => run(context, job.payload),
                        _ => Err(stopping()),
                    };
                    drop(within);
                    span.over(&answer);
                    server.finished(&header, line, answer);
                });
            }
        }
        None
    }

    /// A function runs, which is to be told if nobody waits for it any more.
    fn runs(&self, call: u64, cancellation: &Cancellation) {
        self.served().running.insert(call, cancellation.clone());
        // Whoever ended the connection may have looked at those that run before this one was there.
        if self.link.ended().is_some() {
            cancellation.cancel();
        }
    }

    fn work_on(self: &Arc<Self>, next: Option<Job>) {
        if let Some(job) = next {
            self.work(job);
        }
    }

    fn finished(self: &Arc<Self>, header: &Header, line: Option<u64>, answer: Answer) {
        self.served().running.remove(&header.call);
        if let Some(core) = self.core.upgrade() {
            core.counters.ran();
        }
        self.reply(header, answer);
        self.work_on(self.next_in(line));
    }

    /// The caller does not want the result any more.
    fn cancel(&self, call: u64) {
        let mut served = self.served();
        if let Some(cancelled) = served.waiting.get_mut(&call) {
            *cancelled = true;
        }
        let running = served.running.get(&call).cloned();
        drop(served);
        if let Some(cancellation) = running {
            cancellation.cancel();
        }
    }

    fn reply(self: &Arc<Self>, header: &Header, answer: Answer) {
        let fits = |payload: Payload| match self.core.upgrade() {
            Some(core) => core.fits(&payload).map(|()| payload),
            None => Ok(payload),
        };
        let payload = match answer.and_then(fits) {
            Ok(payload) => payload,
            Err(error) => return self.send_error(header.call, &Refusal::new(error)),
        };
        let reply = Header {
            call: header.call,
            trace: header.trace,
            ..Header::new(FrameKind::Reply)
        };
        let lend = self
            .caller
            .get()
            .is_some_and(|caller| caller.lending.lends());
        let parts = lent::placed(payload.parts, lend, &self.link.arenas);
        let kept = lent::kept(&parts);
        if !kept.is_empty() {
            self.served().lent.insert(header.call, kept);
        }
        if let Err(error) = self.link.send(&reply, &payload.body, parts) {
            fail(self, error);
        }
    }

    fn send_error(self: &Arc<Self>, call: u64, refusal: &Refusal) {
        let header = Header {
            call,
            ..Header::new(FrameKind::Error)
        };
        if let Err(error) = self.link.send(&header, &refusal.to_bytes(), Vec::new()) {
            fail(self, error);
        }
    }

    /// Tells the caller that this worker goes, and why.
    pub(crate) fn say_goodbye(&self, reason: &str) {
        self.link
            .send_last(&Header::new(FrameKind::GoAway), reason.as_bytes());
    }
}

impl Endpoint for Server {
    fn link(&self) -> &Link {
        &self.link
    }

    fn take(self: Arc<Self>, frame: Frame) -> Option<Limits> {
        let Some(caller) = self.caller.get() else {
            if let Err(error) = self.greet(&frame) {
                let introduction = self.greeting().as_ref().and_then(Greeting::introduction);
                if let (FrameKind::Hello, Some(hello)) = (frame.header.kind, introduction) {
                    self.link.send_last(&Header::new(FrameKind::Hello), &hello);
                }
                self.say_goodbye(&error.message);
                fail(&self, error);
            }
            let core = self
                .core
                .upgrade()
                .filter(|_| self.caller.get().is_some())?;
            return Some(core.limits);
        };
        let kind = frame.header.kind;
        let taken = match kind {
            FrameKind::Request => self.request(caller, frame),
            FrameKind::Cancel => {
                self.cancel(frame.header.call);
                Ok(())
            }
            FrameKind::Release if !frame.body.is_empty() => self.link.arenas.returned(&frame.body),
            FrameKind::Release => {
                self.served().lent.remove(&frame.header.call);
                Ok(())
            }
            FrameKind::References => {
                if let Some(core) = self.core.upgrade() {
                    core.references(caller, &frame.body);
                }
                Ok(())
            }
            FrameKind::Ping => {
                let pong = caller.lending.answer_ping(&frame.body);
                self.link
                    .send(&Header::new(FrameKind::Pong), &pong, Vec::new())
            }
            // An orderly end is about to come.
            FrameKind::GoAway => Ok(()),
            _ => {
                let text = format!("it sent a {kind:?} where requests come only");
                Err(RpcError::new(RpcErrorKind::Protocol, text))
            }
        };
        if let Err(error) = taken {
            self.say_goodbye(&error.message);
            fail(&self, error);
        }
        None
    }

    fn lost(self: Arc<Self>, error: RpcError) {
        let mut served = self.served();
        let running = std::mem::take(&mut served.running);
        served.lent.clear();
        served.lines.clear();
        served.waiting.clear();
        drop(served);
        for cancellation in running.values() {
            cancellation.cancel();
        }
        if let Some(core) = self.core.upgrade() {
            core.caller_lost(self.caller.get(), &error);
        }
    }
}

/// Goes through with a call. At its deadline it is told that nobody waits any more.
async fn to_the_end(
    mut running: Running,
    deadline: Option<Instant>,
    cancellation: &Cancellation,
) -> Answer {
    if let Some(deadline) = deadline {
        let in_time = tokio::time::timeout_at(deadline.into(), Pin::new(&mut running)).await;
        match in_time {
            Ok(answer) => return answer,
            Err(_) => cancellation.cancel(),
        }
    }
    running.await
}

fn cancelled() -> RpcError {
    let text = "the call was cancelled before it was begun";
    RpcError::new(RpcErrorKind::Cancelled, text)
}

fn expired() -> RpcError {
    let text = "the time for the call was over before it was begun";
    RpcError::new(RpcErrorKind::Deadline, text)
}

fn stopping() -> RpcError {
    RpcError::new(RpcErrorKind::Stopping, "the worker is shutting down")
}
