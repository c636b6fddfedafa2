//! Runs the functions of requests whose turn has come, and answers them.
//!
//! If the caller no longer waits, the function is notified.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use rdzv_rpc_proto::calls::Share;
use rdzv_rpc_proto::frame::Header;

use super::requests::Job;
use super::{HangUp, Runs, Served, Server};
use crate::channel::failure::Refusal;
use crate::channel::span::CallSpan;
use crate::error::{RpcError, RpcErrorKind};
use crate::payload::{Answer, Payload};
use crate::runtime::core::{CallContext, Core, RpcAgent};
use crate::service::cancellation::Cancellation;
use crate::service::functions::{MethodBody, Running};
use crate::wire::link::Endpoint as _;

/// A blocking function without its argument, which is in [`Runs`].
pub(super) struct Blocking {
    header: Header,
    line: Option<u64>,
    context: CallContext,
    span: CallSpan,
}

impl Server {
    /// Serves a request until it is answered or has to wait for an event.
    pub(super) fn work(self: &Arc<Self>, job: Job) {
        let mut next = Some(job);
        // Requests in a line follow each other in a loop, because each may be answered immediately.
        while let Some(job) = next.take() {
            let (header, line) = (job.header, job.line);
            let answer = match self.complete(job) {
                Some(Ok(job)) => self.start(job),
                Some(Err(error)) => {
                    self.served.lock().waited(header.call);
                    Some(Err(error))
                }
                None => None,
            };
            if let Some(answer) = answer {
                self.reply(&header, answer);
                next = self.next_in(line);
            }
        }
    }

    /// Answers a request that cannot start, and starts the next one of its line.
    pub(super) fn refuse(self: &Arc<Self>, header: &Header, line: Option<u64>, error: RpcError) {
        self.served.lock().waited(header.call);
        self.reply(header, Err(error));
        self.work_on(self.next_in(line));
    }

    /// Starts the function, and returns its answer if it has one immediately.
    fn start(self: &Arc<Self>, job: Job) -> Option<Answer> {
        let call = job.header.call;
        let waited = self.served.lock().waiting.get(&call).copied();
        let answer = match waited {
            Some(waiting) if waiting.is_cancelled => Some(Err(cancelled())),
            _ => self.begin(job),
        };
        // A request that has waited may begin on a different thread than the reading one. It may be
        // cancelled at any time, so it stays in `waiting` until it is recorded in `running`.
        if waited.is_some() {
            self.served.lock().waited(call);
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
        let Some((name, handler)) = core.functions.find(job.header.method) else {
            let refusal = Refusal::no_such_method(core.functions.listed());
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
        let cancellation = Cancellation::deadline(job.deadline);
        let context = CallContext {
            agent: RpcAgent::borrowed(Arc::clone(&core)),
            caller: caller.worker.clone(),
            caller_incarnation: caller.incarnation,
            deadline: job.deadline,
            cancellation: cancellation.clone(),
            trace: job.header.trace,
            connection: Some(Arc::downgrade(self) as Weak<dyn HangUp>),
        };
        let (header, line, share) = (job.header, job.line, job.share);
        match handler {
            MethodBody::Async(start) => {
                span.queue_over();
                let mut running = start(context, job.payload);
                let mut context = Context::from_waker(Waker::noop());
                if let Poll::Ready(answer) = running.as_mut().poll(&mut context) {
                    span.over(&answer);
                    return Some(answer);
                }
                self.runs(&core, header.call, share, &cancellation, None);
                let server = Arc::clone(self);
                let counted = core.executor.begin();
                core.executor.spawn(async move {
                    let answer = to_the_end(running, job.deadline, &cancellation).await;
                    span.over(&answer);
                    server.finished(&header, line, answer);
                    drop(counted);
                });
            }
            MethodBody::Deferred(hand_over) => {
                span.queue_over();
                self.runs(&core, header.call, share, &cancellation, None);
                let server = Arc::clone(self);
                hand_over(
                    context,
                    job.payload,
                    Box::new(move |answer| {
                        span.over(&answer);
                        server.finished(&header, line, answer);
                    }),
                );
            }
            MethodBody::Blocking(_) => {
                self.runs(&core, header.call, share, &cancellation, Some(job.payload));
                self.take_a_thread(Blocking {
                    header,
                    line,
                    context,
                    span,
                });
            }
        }
        None
    }

    /// Schedules a blocking function on a thread.
    fn take_a_thread(self: &Arc<Self>, job: Blocking) {
        let server = Arc::clone(self);
        let executor = Arc::clone(&job.context.agent.core().executor);
        executor.spawn_blocking(job.context.trace, move || server.run(job));
    }

    /// Runs a blocking function on its thread.
    ///
    /// If too many replies are unread, the function first waits until the caller reads them.
    fn run(self: &Arc<Self>, mut job: Blocking) {
        if !self.may_take() {
            // The code that resumes or ends the connection takes `held` under this lock.
            let mut served = self.served.lock();
            self.link.pause();
            if !self.may_take() && self.link.ended().is_none() {
                return served.held.push(job);
            }
        }
        let call = job.header.call;
        let argument = self
            .served
            .lock()
            .running
            .get_mut(&call)
            .and_then(|runs| runs.argument.take());
        job.span.queue_over();
        let core = Arc::clone(job.context.agent.core());
        let answer = match (core.functions.find(job.header.method), argument) {
            _ if job.context.cancellation.is_cancelled() => Err(expired()),
            (Some((_, MethodBody::Blocking(run))), Some(argument)) => run(job.context, argument),
            _ => Err(stopping()),
        };
        drop(core);
        job.span.over(&answer);
        self.finished(&job.header, job.line, answer);
    }

    /// Runs held functions, because the caller reads again or is lost.
    pub(super) fn go_on_with(self: &Arc<Self>, held: Vec<Blocking>) {
        for job in held {
            self.take_a_thread(job);
        }
    }

    /// Registers a running function, so that it can be notified of a cancellation.
    ///
    /// The argument of a function that waits for a thread is kept here, so that it is dropped if
    /// the caller is lost.
    fn runs(
        &self,
        core: &Core,
        call: u64,
        share: Share,
        cancellation: &Cancellation,
        argument: Option<Payload>,
    ) {
        core.counters.runs();
        let mut served = self.served.lock();
        let waited = served.waited(call);
        let is_cancelled = waited.is_some_and(|waiting| waiting.is_cancelled);
        let share = waited.map_or(share, |waiting| waiting.share);
        // A small body shares memory with all frames that arrived with it.
        let argument = argument.map(|argument| {
            if share.beyond {
                Payload {
                    body: Bytes::copy_from_slice(&argument.body),
                    ..argument
                }
            } else {
                argument
            }
        });
        served.window.take(share);
        let runs = Runs {
            share,
            cancellation: cancellation.clone(),
            argument,
        };
        served.running.insert(call, runs);
        drop(served);
        // The connection may have ended before this function was in `running`.
        if is_cancelled || self.link.ended().is_some() {
            cancellation.cancel();
        }
    }

    fn finished(self: &Arc<Self>, header: &Header, line: Option<u64>, answer: Answer) {
        self.served.lock().ended(header.call);
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

    /// Cancels a call whose caller no longer wants the result.
    pub(super) fn cancel(&self, call: u64) {
        let mut served = self.served.lock();
        let Served {
            waiting,
            running,
            window,
            lines,
            ..
        } = &mut *served;
        let mut forgotten = None;
        if let Some(waiting) = waiting.get_mut(&call)
            && !waiting.is_cancelled
        {
            waiting.is_cancelled = true;
            let mut kept = waiting.share.bytes;
            let line = waiting.line.and_then(|key| lines.get_mut(&key));
            let job = line.and_then(|line| line.iter_mut().find(|job| job.header.call == call));
            if let Some(job) = job {
                forgotten = Some((std::mem::take(&mut job.payload), job.unread.take()));
                kept = 0;
            }
            window.give_up(&mut waiting.share, kept);
        }
        let cancelled = running.get_mut(&call).map(|runs| {
            if let Some(argument) = runs.argument.take() {
                forgotten = Some((argument, None));
                window.give_up(&mut runs.share, 0);
            } else if !runs.share.beyond {
                let kept = runs.share.bytes;
                window.give_up(&mut runs.share, kept);
            }
            runs.cancellation.clone()
        });
        drop(served);
        // Dropped without the lock, because it may be large.
        drop(forgotten);
        if let Some(cancellation) = cancelled {
            cancellation.cancel();
        }
    }
}

/// Runs an async function to its end.
///
/// At the deadline of the call, the function is notified that its result is no longer needed.
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
    let text = "the call was cancelled before it started";
    RpcError::new(RpcErrorKind::Cancelled, text)
}

fn expired() -> RpcError {
    let text = "the timeout of the call expired before it started";
    RpcError::new(RpcErrorKind::Deadline, text)
}

fn stopping() -> RpcError {
    RpcError::new(RpcErrorKind::Stopping, "the worker is shutting down")
}
