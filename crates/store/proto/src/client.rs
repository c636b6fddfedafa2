//! The client's end of a connection.
//!
//! One operation at a time is in progress. A wait may have no time limit; every other reply has
//! one.
//!
//! ```text
//!            Start            WAIT/BARRIER sent          deadline: CANCEL_WAIT sent
//!   Idle ─────────────┬────────► Waiting ─────────────────────► Cancelling
//!    ▲                │             │ 0x00                       │ 0x01: timed out ──► Idle
//!    │                │             ▼                            │ 0x00, then 0x01
//!    │                └────────► Answering ◄─────────────────────┘
//!    │      whole reply             │
//!    └──────────────────────────────┘      anything else, at any time: Dead
//! ```
//!
//! An rdzv server may answer a wait with the value itself (0x02). In this case, `Answering` begins
//! without another request. If the client cancels at the same time, the value arrives first,
//! followed by 0x01 (`Cancelled`).
//!
//! The protocol has neither request ids nor error replies. A connection on which anything went
//! wrong therefore cannot be used again: its later bytes would be ambiguous. A wait that times out
//! leaves the connection usable, once the server has answered the cancellation.
//!
//! The server's release and the client's cancellation may cross. In this case, the client receives
//! both answers. The keys existed, so the operation continues, unless the caller has stopped it.
//! PyTorch reports a timeout instead.

use std::time::Duration;

use thiserror::Error;

use super::limits::MAX_REPLY_BYTES;
use super::wire::reply::{Reply, ReplyReader, STOP_WAITING, Shape, VALUE_FOLLOWS, WAIT_CANCELED};
use super::wire::{StoreWireError, request};
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::time::{Mono, Now};

/// One call of the store's API: the bytes to send and the expected answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOperation {
    /// The first request.
    ///
    /// The driver may send the last value after it.
    pub request: Vec<u8>,
    /// The expected answer of the server.
    pub expects: Expects,
}

/// The answer of the server to an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expects {
    /// The server does not answer.
    Nothing,
    /// A reply that the server sends immediately.
    Reply(Shape),
    /// One byte when the wait or barrier is over.
    /// The client waits for at most `limit`.
    Release {
        /// Time limit of the wait; with `Duration::ZERO`, the server checks once.
        /// `Duration::MAX` means no limit.
        limit: Duration,
        /// Request to send after the release.
        then: Option<Then>,
    },
}

/// A request that the client sends when a wait is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Then {
    /// The request.
    pub request: Vec<u8>,
    /// The reply to the request.
    pub shape: Shape,
    /// `true` if the server may send the reply in place of the release.
    ///
    /// The client then sends no request.
    pub at_once: bool,
}

/// The cause of the failure of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OperationFailure {
    /// The wait was not over within its time limit and was cancelled.
    ///
    /// The connection is still usable.
    #[error("the wait timed out")]
    TimedOut,
    /// A reply that is due immediately did not arrive.
    #[error("no answer")]
    NoAnswer,
    /// The connection was closed or broke.
    #[error("the connection was closed")]
    Closed,
    /// The caller stopped the operation.
    ///
    /// The connection is still usable if this happened during a wait that was not being cancelled.
    #[error("the caller stopped waiting")]
    GivenUp,
    /// The received bytes are not an answer to the request.
    #[error(transparent)]
    NoStore(#[from] StoreWireError),
}

/// An event on the client's side of a connection.
#[derive(Debug)]
pub enum Input<'a> {
    /// The user starts an operation. Nothing else may be in progress.
    Start {
        /// The operation.
        operation: StoreOperation,
        /// Time limit of a reply that is due immediately.
        reply_timeout: Duration,
    },
    /// Bytes arrived.
    Received(&'a [u8]),
    /// Bytes were read into [`ClientMachine::space`].
    Filled,
    /// The peer closed the connection, or the connection broke.
    Closed,
    /// The caller stops the operation.
    ///
    /// A wait is cancelled. If a reply is due, the connection fails.
    GiveUp,
    /// Time passed.
    Tick,
}

/// An action that the machine requests from its driver.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Send these bytes.
    Send(Vec<u8>),
    /// The operation is over. The result contains a reply if one was expected.
    Done(Result<Option<Reply>, OperationFailure>),
}

#[derive(Debug)]
enum State {
    Idle,
    Waiting {
        deadline: Option<Mono>,
        then: Option<Then>,
    },
    Cancelling {
        /// `true` if the release arrived after the client had sent its cancellation.
        released: bool,
        /// `true` if the caller stopped the operation.
        /// No request follows a release then.
        given_up: bool,
        then: Option<Then>,
    },
    Answering {
        reader: ReplyReader,
        /// `Some` if the client has cancelled; the answer to the cancellation follows.
        ///
        /// The value is `true` if the caller stopped the operation.
        cancelled: Option<bool>,
    },
    /// Result of the operation once the server has answered the cancellation.
    Cancelled(Result<Option<Reply>, OperationFailure>),
    Dead(OperationFailure),
}

/// The state of the client; see the [module](self) for a diagram.
#[derive(Debug)]
pub struct ClientMachine {
    state: State,
    outbox: Outbox<Output>,
    reply_timeout: Duration,
    /// Maximum memory for one reply.
    max_reply_bytes: usize,
    /// Deadline of the reply in progress; not used while waiting.
    answer_by: Mono,
}

impl Default for ClientMachine {
    fn default() -> Self {
        Self::new(MAX_REPLY_BYTES)
    }
}

impl ClientMachine {
    /// Creates a client that allows at most this much memory for one reply.
    pub fn new(max_reply_bytes: usize) -> Self {
        Self {
            state: State::Idle,
            outbox: Outbox::default(),
            reply_timeout: Duration::ZERO,
            max_reply_bytes,
            answer_by: Mono::ZERO,
        }
    }
}

impl Machine for ClientMachine {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input<'_>) {
        self.outbox.assert_drained();
        match input {
            Input::Start {
                operation,
                reply_timeout,
            } => self.start(now.mono, operation, reply_timeout),
            Input::Received(bytes) => self.receive(now.mono, bytes),
            Input::Filled => self.receive(now.mono, &[]),
            Input::Closed => self.fail(OperationFailure::Closed),
            Input::GiveUp => self.give_up(now.mono),
            Input::Tick => self.tick(now.mono),
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn deadline(&self) -> Option<Mono> {
        match &self.state {
            State::Idle | State::Dead(_) => None,
            State::Waiting { deadline, .. } => *deadline,
            State::Cancelling { .. } | State::Answering { .. } | State::Cancelled(_) => {
                Some(self.answer_by)
            }
        }
    }
}

impl ClientMachine {
    /// Returns the failure that made the connection unusable, if any.
    pub fn death(&self) -> Option<&OperationFailure> {
        match &self.state {
            State::Dead(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns the buffer into which the driver may read the rest of a value.
    ///
    /// The driver reads at most the spare capacity of the buffer and then sends [`Input::Filled`].
    /// If this returns `None`, the driver reads into its own buffer and sends [`Input::Received`].
    pub fn space(&mut self) -> Option<&mut Vec<u8>> {
        let State::Answering { reader, .. } = &mut self.state else {
            return None;
        };
        let missing = reader.missing();
        let space = reader.space()?;
        // An allocator may return more than the requested capacity; the buffer must not receive
        // bytes of the next value.
        (space.capacity() - space.len() <= missing).then_some(space)
    }

    fn start(&mut self, now: Mono, operation: StoreOperation, reply_timeout: Duration) {
        match &self.state {
            State::Idle => {}
            State::Dead(failure) => {
                self.outbox.push(Output::Done(Err(failure.clone())));
                return;
            }
            busy => {
                debug_assert!(false, "an operation was started during another: {busy:?}");
                self.fail(OperationFailure::Closed);
                return;
            }
        }
        self.reply_timeout = reply_timeout;
        let bytes = operation.request;
        match operation.expects {
            Expects::Nothing => {
                self.outbox.push(Output::Send(bytes));
                self.outbox.push(Output::Done(Ok(None)));
            }
            Expects::Reply(shape) => self.ask(now, bytes, shape),
            Expects::Release { limit, then } if limit.is_zero() => {
                self.cancel(now, bytes, false, then);
            }
            Expects::Release { limit, then } => {
                self.outbox.push(Output::Send(bytes));
                let deadline = (limit < Duration::MAX).then(|| now + limit);
                self.state = State::Waiting { deadline, then };
            }
        }
    }

    fn ask(&mut self, now: Mono, bytes: Vec<u8>, shape: Shape) {
        self.outbox.push(Output::Send(bytes));
        self.expect(now, shape, None);
        // A reply without values is complete before a byte arrives.
        self.receive(now, &[]);
    }

    fn expect(&mut self, now: Mono, shape: Shape, cancelled: Option<bool>) {
        self.answer_by = now + self.reply_timeout;
        let reader = ReplyReader::new(shape, self.max_reply_bytes);
        self.state = State::Answering { reader, cancelled };
    }

    fn receive(&mut self, now: Mono, mut input: &[u8]) {
        loop {
            match &mut self.state {
                State::Dead(_) => return,
                State::Answering { reader, cancelled } => match reader.feed(&mut input) {
                    Ok(None) => return,
                    Ok(Some(reply)) => match *cancelled {
                        None => self.finish(Ok(Some(reply))),
                        Some(given_up) => {
                            self.state = State::Cancelled(if given_up {
                                Err(OperationFailure::GivenUp)
                            } else {
                                Ok(Some(reply))
                            });
                        }
                    },
                    Err(error) => return self.fail(error.into()),
                },
                waiting => {
                    let Some((&byte, rest)) = input.split_first() else {
                        return;
                    };
                    input = rest;
                    match (waiting, byte) {
                        (State::Waiting { then, .. }, STOP_WAITING) => {
                            let then = then.take();
                            self.go_on(now, then);
                        }
                        (
                            State::Waiting {
                                then: Some(then), ..
                            },
                            VALUE_FOLLOWS,
                        ) if then.at_once => {
                            let shape = then.shape;
                            self.expect(now, shape, None);
                        }
                        (State::Cancelling { released, .. }, STOP_WAITING) if !*released => {
                            *released = true;
                        }
                        (
                            State::Cancelling {
                                released: false,
                                given_up,
                                then: Some(then),
                            },
                            VALUE_FOLLOWS,
                        ) if then.at_once => {
                            let (shape, given_up) = (then.shape, *given_up);
                            self.expect(now, shape, Some(given_up));
                        }
                        (State::Cancelled(result), WAIT_CANCELED) => {
                            let result = result.clone();
                            self.finish(result);
                        }
                        (State::Cancelling { given_up: true, .. }, WAIT_CANCELED) => {
                            self.finish(Err(OperationFailure::GivenUp));
                        }
                        (State::Cancelling { released, then, .. }, WAIT_CANCELED) => {
                            let (released, then) = (*released, then.take());
                            if released {
                                self.go_on(now, then);
                            } else {
                                self.finish(Err(OperationFailure::TimedOut));
                            }
                        }
                        (waiting, found) => {
                            let expected = match waiting {
                                State::Waiting { .. } => "the end of a wait (0)",
                                State::Cancelling { .. } => "the end of a wait (0 or 1)",
                                State::Cancelled(_) => "the end of a wait (1)",
                                _ => "nothing",
                            };
                            return self
                                .fail(StoreWireError::UnexpectedReply { found, expected }.into());
                        }
                    }
                }
            }
        }
    }

    /// Continues after the end of a wait with the next request, if there is one.
    fn go_on(&mut self, now: Mono, then: Option<Then>) {
        match then {
            Some(then) => self.ask(now, then.request, then.shape),
            None => self.finish(Ok(None)),
        }
    }

    fn tick(&mut self, now: Mono) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match &mut self.state {
            State::Waiting { then, .. } => {
                let then = then.take();
                self.cancel(now, Vec::new(), false, then);
            }
            _ => self.fail(OperationFailure::NoAnswer),
        }
    }

    fn give_up(&mut self, now: Mono) {
        match &mut self.state {
            State::Waiting { then, .. } => {
                let then = then.take();
                self.cancel(now, Vec::new(), true, then);
            }
            State::Idle | State::Dead(_) => {}
            // The caller does not wait for the answer to the cancellation or to the request.
            State::Cancelling { .. } | State::Answering { .. } | State::Cancelled(_) => {
                self.fail(OperationFailure::GivenUp);
            }
        }
    }

    /// Cancels the wait, with `bytes` sent in front of the request to cancel it.
    fn cancel(&mut self, now: Mono, mut bytes: Vec<u8>, given_up: bool, then: Option<Then>) {
        request::cancel_wait(&mut bytes);
        self.outbox.push(Output::Send(bytes));
        self.answer_by = now + self.reply_timeout;
        self.state = State::Cancelling {
            released: false,
            given_up,
            then,
        };
    }

    fn finish(&mut self, result: Result<Option<Reply>, OperationFailure>) {
        self.state = State::Idle;
        self.outbox.push(Output::Done(result));
    }

    fn fail(&mut self, failure: OperationFailure) {
        let before = std::mem::replace(&mut self.state, State::Dead(failure.clone()));
        match before {
            // No operation is in progress; the next operation fails with this cause.
            State::Idle => {}
            State::Dead(first) => self.state = State::Dead(first),
            _ => self.outbox.push(Output::Done(Err(failure))),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
    const LIMIT: Duration = Duration::from_secs(2);

    #[derive(Default)]
    struct Client {
        machine: ClientMachine,
        now: Now,
    }

    impl Client {
        fn handle(&mut self, input: Input<'_>) -> Vec<Output> {
            self.machine.handle(self.now, input);
            std::iter::from_fn(|| self.machine.poll_output()).collect()
        }

        fn start(&mut self, request: &[u8], expects: Expects) -> Vec<Output> {
            let operation = StoreOperation {
                request: request.to_vec(),
                expects,
            };
            self.handle(Input::Start {
                operation,
                reply_timeout: REPLY_TIMEOUT,
            })
        }

        fn get(&mut self) -> Vec<Output> {
            self.get_with(false)
        }

        fn get_with(&mut self, at_once: bool) -> Vec<Output> {
            let then = Some(Then {
                request: b"get".to_vec(),
                shape: Shape::Bytes,
                at_once,
            });
            self.start(b"wait", Expects::Release { limit: LIMIT, then })
        }

        fn receive(&mut self, bytes: &[u8]) -> Vec<Output> {
            self.handle(Input::Received(bytes))
        }

        fn tick_after(&mut self, passed: Duration) -> Vec<Output> {
            self.now.mono = self.now.mono + passed;
            self.handle(Input::Tick)
        }
    }

    fn send(bytes: &[u8]) -> Output {
        Output::Send(bytes.to_vec())
    }

    fn failed(failure: OperationFailure) -> Output {
        Output::Done(Err(failure))
    }

    fn value(bytes: &'static [u8]) -> Output {
        Output::Done(Ok(Some(Reply::Bytes(Bytes::from_static(bytes)))))
    }

    const FIVE: &[u8] = b"\x05\0\0\0\0\0\0\0value";

    #[test]
    fn get_asks_for_the_value_once_the_wait_is_over() {
        let mut client = Client::default();
        assert_eq!(client.get(), [send(b"wait")]);
        assert_eq!(client.receive(&[0]), [send(b"get")]);
        assert_eq!(client.receive(&FIVE[..10]), []);
        assert_eq!(client.receive(&FIVE[10..]), [value(b"value")]);
        assert_eq!(client.machine.deadline(), None);
    }

    #[test]
    fn a_wait_that_times_out_is_cancelled_in_order() {
        let mut client = Client::default();
        client.get();
        assert_eq!(client.tick_after(LIMIT / 2), []);
        assert_eq!(client.tick_after(LIMIT / 2), [send(&[0x0c])]);
        assert_eq!(client.receive(&[1]), [failed(OperationFailure::TimedOut)]);
        assert_eq!(client.get(), [send(b"wait")], "and the connection lives on");
    }

    #[test]
    fn a_release_that_crosses_the_cancelling_counts() {
        let mut client = Client::default();
        client.get();
        client.tick_after(LIMIT);
        assert_eq!(client.receive(&[0]), []);
        assert_eq!(client.receive(&[1]), [send(b"get")]);
        assert_eq!(client.receive(FIVE), [value(b"value")]);
    }

    #[test]
    fn a_value_may_come_instead_of_the_release() {
        let mut client = Client::default();
        assert_eq!(client.get_with(true), [send(b"wait")]);
        assert_eq!(client.receive(&[2]), []);
        assert_eq!(client.receive(FIVE), [value(b"value")]);
        assert_eq!(client.get_with(true), [send(b"wait")]);
        assert_eq!(client.receive(&[0]), [send(b"get")]);
        assert_eq!(client.receive(FIVE), [value(b"value")]);
        assert_eq!(client.machine.deadline(), None);
    }

    #[test]
    fn a_value_that_crosses_the_cancelling_counts_unless_the_caller_gave_up() {
        for gives_up in [false, true] {
            let mut client = Client::default();
            client.get_with(true);
            let cancelling = if gives_up {
                client.handle(Input::GiveUp)
            } else {
                client.tick_after(LIMIT)
            };
            assert_eq!(cancelling, [send(&[0x0c])]);
            assert_eq!(client.receive(&[&[2], FIVE].concat()), []);
            assert!(client.machine.deadline().is_some());
            let result = if gives_up {
                failed(OperationFailure::GivenUp)
            } else {
                value(b"value")
            };
            assert_eq!(client.receive(&[1]), [result]);
            assert_eq!(client.get(), [send(b"wait")], "and the connection lives on");
        }
    }

    #[test]
    fn a_wait_that_is_given_up_is_cancelled_and_nothing_follows() {
        for answers in [&[1][..], &[0, 1]] {
            let mut client = Client::default();
            client.get();
            assert_eq!(client.handle(Input::GiveUp), [send(&[0x0c])]);
            assert_eq!(client.receive(answers), [failed(OperationFailure::GivenUp)]);
            assert_eq!(client.get(), [send(b"wait")], "and the connection lives on");
        }
    }

    #[test]
    fn a_reply_that_is_not_waited_for_costs_the_connection() {
        let mut client = Client::default();
        client.start(b"add", Expects::Reply(Shape::Number));
        let given_up = || failed(OperationFailure::GivenUp);
        assert_eq!(client.handle(Input::GiveUp), [given_up()]);
        assert_eq!(client.get(), [given_up()]);
    }

    #[test]
    fn a_limit_of_zero_sends_both_at_once() {
        let mut client = Client::default();
        let expects = || Expects::Release {
            limit: Duration::ZERO,
            then: None,
        };
        assert_eq!(client.start(b"wait", expects()), [send(b"wait\x0c")]);
        assert_eq!(client.receive(&[1]), [failed(OperationFailure::TimedOut)]);
        client.start(b"wait", expects());
        assert_eq!(client.receive(&[0, 1]), [Output::Done(Ok(None))]);
    }

    #[test]
    fn a_wait_for_ever_has_no_deadline() {
        let mut client = Client::default();
        let (limit, then) = (Duration::MAX, None);
        client.start(b"wait", Expects::Release { limit, then });
        assert_eq!(client.machine.deadline(), None);
        assert_eq!(client.tick_after(Duration::from_secs(1 << 40)), []);
        assert_eq!(client.receive(&[0]), [Output::Done(Ok(None))]);
    }

    #[test]
    fn a_silent_server_is_fatal_wherever_an_answer_is_due() {
        let mut client = Client::default();
        client.start(b"add", Expects::Reply(Shape::Number));
        client.receive(&[0; 7]);
        assert_eq!(
            client.tick_after(REPLY_TIMEOUT),
            [failed(OperationFailure::NoAnswer)]
        );
        let mut client = Client::default();
        client.get();
        client.tick_after(LIMIT);
        assert_eq!(
            client.tick_after(REPLY_TIMEOUT),
            [failed(OperationFailure::NoAnswer)]
        );
        assert_eq!(client.get(), [failed(OperationFailure::NoAnswer)]);
    }

    #[test]
    fn bytes_that_nobody_asked_for_are_fatal() {
        for stray in [7, 1, 2] {
            let expected = "the end of a wait (0)";
            let mut client = Client::default();
            client.get();
            let error = StoreWireError::UnexpectedReply {
                found: stray,
                expected,
            };
            assert_eq!(
                client.receive(&[stray]),
                [failed(OperationFailure::NoStore(error))]
            );
        }
        let mut client = Client::default();
        client.get();
        client.receive(&[0]);
        assert_eq!(client.receive(&[FIVE, b"!"].concat()), [value(b"value")]);
        assert!(matches!(
            client.machine.death(),
            Some(OperationFailure::NoStore(_))
        ));
    }

    #[test]
    fn the_first_cause_of_death_is_kept() {
        let mut client = Client::default();
        client.get();
        assert_eq!(
            client.handle(Input::Closed),
            [failed(OperationFailure::Closed)]
        );
        assert_eq!(client.receive(b"late"), []);
        assert_eq!(client.handle(Input::Closed), []);
        assert_eq!(client.get(), [failed(OperationFailure::Closed)]);
    }

    #[test]
    fn a_reply_of_no_values_needs_no_byte() {
        let mut client = Client::default();
        assert_eq!(
            client.start(b"multi_get", Expects::Reply(Shape::Values(0))),
            [
                send(b"multi_get"),
                Output::Done(Ok(Some(Reply::Values(vec![]))))
            ]
        );
    }

    #[test]
    fn a_value_may_be_read_into_its_buffer() {
        let mut client = Client::default();
        client.start(b"get", Expects::Reply(Shape::Bytes));
        assert!(client.machine.space().is_none());
        client.receive(&FIVE[..9]);
        let space = client.machine.space().unwrap();
        assert_eq!(space.capacity() - space.len(), 4);
        space.extend_from_slice(b"alue");
        assert_eq!(client.handle(Input::Filled), [value(b"value")]);
    }
}
