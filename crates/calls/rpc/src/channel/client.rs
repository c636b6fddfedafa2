//! The calling side of a connection: its worker, its calls and its frames.
//!
//! | file | what |
//! |---|---|
//! | [`sending`] | calls on their way out |
//! | [`ending`] | the end of each call |
//! | [`waiting`] | a thread that waits for a reply reads the connection itself |

mod ending;
mod sending;
pub(crate) mod waiting;

use std::sync::{Arc, Weak};

use rdzv_event::Waker;
use rdzv_lock::Mutex;
use rdzv_rpc_proto::frame::{Frame, FrameKind, FrameLimits, Header};
use rdzv_rpc_proto::worker::WorkerInfo;
use rdzv_shm::spin::SpinBudget;
use tokio::runtime::Handle;

use crate::bulk::registered::Arenas;
use crate::bulk::remote_read::Lending;
use crate::channel::calls::Calls;
use crate::channel::counters::Counters;
use crate::error::{RpcError, RpcErrorKind};
use crate::wire::link::{Endpoint, Link, fail};

/// The agent that owns a connection, as its calling side sees the agent.
pub(crate) trait ClientOwner: Send + Sync {
    fn connection_lost(self: Arc<Self>, client: &Arc<Client>, error: &RpcError);
}

pub(crate) struct Client {
    link: Link,
    owner: Weak<dyn ClientOwner>,
    counters: Arc<Counters>,
    /// Runtime on whose threads large parts are read.
    runtime: Handle,
    worker: WorkerInfo,
    pub(crate) incarnation: u64,
    arenas: Arenas,
    pub(crate) lending: Arc<Lending>,
    calls: Mutex<Calls>,
    /// Held from the decision to send a request until it is sent.
    ///
    /// Acquired before `calls`.
    order: Mutex<()>,
    /// Spin budget of the threads that wait for replies; see `waiting`.
    pub(crate) spin: SpinBudget,
    /// Wakes the sleeping thread that holds the reader lock.
    /// Another thread uses the waker after it has filled the slot of that thread.
    pub(crate) waker: Arc<Waker>,
}

impl Client {
    pub(crate) fn new(
        link: Link,
        owner: Weak<dyn ClientOwner>,
        counters: Arc<Counters>,
        runtime: Handle,
        (worker, incarnation): (WorkerInfo, u64),
        lending: Lending,
    ) -> std::io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        Ok(Self {
            arenas: Arenas::new(&link),
            link,
            owner,
            counters,
            runtime,
            worker,
            incarnation,
            lending: Arc::new(lending),
            calls: Mutex::default(),
            order: Mutex::default(),
            spin: SpinBudget::new(waiting::SPIN_FOR_REPLY),
            waker,
        })
    }

    pub(crate) fn worker(&self) -> &WorkerInfo {
        &self.worker
    }

    /// `true` if the connection is open to this incarnation of the worker.
    pub(crate) fn serves(&self, incarnation: u64) -> bool {
        self.incarnation == incarnation && self.link.ended().is_none()
    }

    /// Returns the number of unanswered calls, including queued calls.
    pub(crate) fn in_flight(&self) -> usize {
        self.calls.lock().pending.len()
    }

    /// Returns the number of request bytes that count against the limit.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.calls.lock().credit.bytes()
    }

    /// Sends the callee a frame that is not a request.
    pub(crate) fn tell(&self, kind: FrameKind, call: u64, body: &[u8]) -> Result<(), RpcError> {
        let header = Header {
            call,
            ..Header::new(kind)
        };
        self.link.send(&header, body, Vec::new())
    }
}

impl Endpoint for Client {
    fn link(&self) -> &Link {
        &self.link
    }

    fn take(self: Arc<Self>, frame: Frame) -> Option<FrameLimits> {
        match frame.header.kind {
            FrameKind::Reply | FrameKind::Error => self.replied(frame),
            FrameKind::Release if !frame.body.is_empty() => {
                if let Err(error) = self.arenas.returned(&frame.body) {
                    fail(&self, error);
                }
            }
            FrameKind::Release => {
                let mut calls = self.calls.lock();
                let id = frame.header.call;
                calls.abandoned.remove(&id);
                if let Some(call) = calls.pending.get_mut(id) {
                    call.registered.clear();
                }
            }
            FrameKind::Pong => self.lending.pong(&frame.body),
            FrameKind::GoAway => {
                let reason = rdzv_rpc_proto::frame::refusal::reason(&frame.body);
                let text = if reason.is_empty() {
                    "the worker is shutting down".to_owned()
                } else {
                    format!("the worker closed the connection: {reason}")
                };
                fail(&self, RpcError::new(RpcErrorKind::PeerLost, text));
            }
            kind => {
                let text = format!("the worker sent a {kind:?} frame instead of a reply");
                fail(&self, RpcError::new(RpcErrorKind::Protocol, text));
            }
        }
        None
    }

    fn give_back(&self) -> Result<(), RpcError> {
        self.arenas.give_back(&self.link)
    }

    fn lost(self: Arc<Self>, error: RpcError) {
        self.arenas.end();
        let mut calls = self.calls.lock();
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
        if let Some(owner) = self.owner.upgrade() {
            owner.connection_lost(&self, &error);
        }
    }
}
