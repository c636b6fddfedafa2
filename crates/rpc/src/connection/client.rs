//! The calling side of a connection: whom it reaches, and what each of its frames is for.
//!
//! | file | what |
//! |---|---|
//! | [`sending`] | calls on their way out |
//! | [`ending`] | how each of them ends |

mod ending;
mod sending;

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rdzv_event::Waker;
use rdzv_rpc_proto::frame::{Frame, FrameKind, Header, Limits};
use rdzv_rpc_proto::worker::WorkerInfo;

use super::calls::Calls;
use super::lent::Lending;
use super::link::{Endpoint, Link, fail};
use crate::agent::core::Core;
use crate::error::{RpcError, RpcErrorKind};

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
    pub(crate) waker: Arc<Waker>,
}

impl Client {
    pub(crate) fn new(
        link: Link,
        core: Weak<Core>,
        worker: WorkerInfo,
        lending: Lending,
    ) -> std::io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        Ok(Self {
            link,
            core,
            worker,
            lending: Arc::new(lending),
            calls: Mutex::default(),
            order: Mutex::default(),
            patience: AtomicU32::new(super::waiting::PATIENCE),
            waker,
        })
    }

    /// The worker at the other end.
    pub(crate) fn worker(&self) -> &WorkerInfo {
        &self.worker
    }

    /// How many calls wait for their reply.
    pub(crate) fn in_flight(&self) -> usize {
        self.calls.lock().pending.len()
    }

    /// How many bytes of them.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.calls.lock().credit.bytes()
    }

    /// Tells the callee something that has no answer.
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

    fn take(self: Arc<Self>, frame: Frame) -> Option<Limits> {
        match frame.header.kind {
            FrameKind::Reply | FrameKind::Error => self.replied(frame),
            FrameKind::Release if !frame.body.is_empty() => {
                if let Err(error) = self.link.arenas.returned(&frame.body) {
                    fail(&self, error);
                }
            }
            FrameKind::Release => {
                let mut calls = self.calls.lock();
                let id = frame.header.call;
                calls.abandoned.remove(&id);
                if let Some(call) = calls.pending.get_mut(id) {
                    call.lent.clear();
                }
            }
            FrameKind::Pong => self.lending.pong(&frame.body),
            FrameKind::GoAway => {
                let reason = rdzv_rpc_proto::frame::refusal::reason(&frame.body);
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
        if let Some(core) = self.core.upgrade() {
            core.connection_lost(&self, &error);
        }
    }
}
