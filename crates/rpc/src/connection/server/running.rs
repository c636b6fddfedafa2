//! A request whose turn it is: its function is started, told if nobody waits any more, and answered.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rdzv_rpc_proto::frame::Header;

use super::Server;
use super::requests::Job;
use crate::call::cancellation::Cancellation;
use crate::call::context::CallContext;
use crate::call::failure::Refusal;
use crate::call::methods::{Answer, Handler, Running};
use crate::call::span::CallSpan;
use crate::error::{RpcError, RpcErrorKind};

impl Server {
    /// Works on a request until it is answered or has to wait for something.
    pub(super) fn work(self: &Arc<Self>, job: Job) {
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

    /// Starts the function; its answer, if it has it at once.
    fn start(self: &Arc<Self>, job: Job) -> Option<Answer> {
        let call = job.header.call;
        let waited = self.served.lock().waiting.get(&call).copied();
        let answer = match waited {
            Some(true) => Some(Err(cancelled())),
            _ => self.begin(job),
        };
        // Not before: whoever has waited begins on another thread than the one that reads what comes,
        // so it may be cancelled at any time until it is noted among those that run.
        if waited.is_some() {
            self.served.lock().waiting.remove(&call);
        }
        answer
    }

    fn begin(self: &Arc<Self>, job: Job) -> Option<Answer> {
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
        let mut served = self.served.lock();
        let is_cancelled = served.waiting.remove(&call) == Some(true);
        served.running.insert(call, cancellation.clone());
        drop(served);
        // Whoever ended the connection may have looked at those that run before this one was there.
        if is_cancelled || self.link.ended().is_some() {
            cancellation.cancel();
        }
    }

    fn finished(self: &Arc<Self>, header: &Header, line: Option<u64>, answer: Answer) {
        self.served.lock().running.remove(&header.call);
        if let Some(core) = self.core.upgrade() {
            core.counters.ran();
        }
        self.reply(header, answer);
        self.work_on(self.next_in(line));
    }

    fn work_on(self: &Arc<Self>, next: Option<Job>) {
        if let Some(job) = next {
            self.work(job);
        }
    }

    /// The caller does not want the result any more.
    pub(super) fn cancel(&self, call: u64) {
        let mut served = self.served.lock();
        if let Some(cancelled) = served.waiting.get_mut(&call) {
            *cancelled = true;
        }
        let running = served.running.get(&call).cloned();
        drop(served);
        if let Some(cancellation) = running {
            cancellation.cancel();
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
