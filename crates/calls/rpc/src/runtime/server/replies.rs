//! Replies to the caller: a value with its parts, or an error.

use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::frame::{FrameKind, Header};

use super::{MOST_UNREAD, Server};
use crate::bulk::remote_read;
use crate::channel::failure::Refusal;
use crate::channel::request::check_size;
use crate::payload::{Answer, Payload};
use crate::wire::link::fail;

impl Server {
    pub(super) fn reply(self: &Arc<Self>, header: &Header, answer: Answer) {
        let fits = |payload: Payload| match self.core.upgrade() {
            Some(core) => check_size(&core.limits, &payload).map(|()| payload),
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
        // If the caller does not read the lent parts, further parts are sent inline. While too many
        // of them are unread, this worker reads no requests of the caller.
        let lend = lend && self.served.lock().bytes_registered <= MOST_UNREAD;
        let parts = remote_read::placed(payload.parts, lend, &self.arenas);
        let kept = remote_read::kept(&parts);
        if !kept.is_empty() {
            let mut served = self.served.lock();
            served.bytes_registered += kept.iter().map(Bytes::len).sum::<usize>();
            served.registered.insert(header.call, kept);
        }
        if let Err(error) = self.link.send(&reply, &payload.body, parts) {
            fail(self, error);
        }
    }

    pub(super) fn send_error(self: &Arc<Self>, call: u64, refusal: &Refusal) {
        let header = Header {
            call,
            ..Header::new(FrameKind::Error)
        };
        if let Err(error) = self.link.send(&header, &refusal.to_bytes(), Vec::new()) {
            fail(self, error);
        }
    }
}
