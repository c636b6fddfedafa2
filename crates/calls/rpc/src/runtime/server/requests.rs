//! Incoming requests: checks their limits, collects their parts, orders lines.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Buf as _;
use rdzv_core::quantity::count;
use rdzv_rpc_proto::calls::Share;
use rdzv_rpc_proto::frame::{Frame, FrameKind, Header, Part, PartLocation};

use super::{Caller, Server};
use crate::bulk::remote_read;
use crate::channel::request::{IN_LINE, NESTED, READS_MEMORY};
use crate::error::{RpcError, RpcErrorKind};
use crate::payload::{Answer, Payload};
use crate::wire::link::fail;

/// A request that is about to be served.
pub(super) struct Job {
    pub(super) header: Header,
    pub(super) payload: Payload,
    /// The message, until its lent parts are read into `payload`.
    pub(super) unread: Option<Frame>,
    pub(super) line: Option<u64>,
    pub(super) deadline: Option<Instant>,
    /// Share of the window that the request occupies while it is open.
    pub(super) share: Share,
}

impl Server {
    pub(super) fn request(
        self: &Arc<Self>,
        caller: &Caller,
        mut frame: Frame,
    ) -> Result<(), RpcError> {
        let header = frame.header;
        let share = Share {
            beyond: header.flags & NESTED != 0,
            bytes: length(&frame),
        };
        {
            let served = self.served.lock();
            if served.is_open(header.call) {
                let text = format!("it sent call {} twice", header.call);
                return Err(RpcError::new(RpcErrorKind::Protocol, text));
            }
            if !served.window.has_room(share.beyond) {
                let (calls, bytes) = served.window.in_use();
                drop(served);
                // Parts that are borrowed here are returned when the frame is dropped.
                let _ = self.arenas.borrow(&mut frame);
                let text = format!(
                    "the limit is reached: this worker has {} with {bytes} bytes there; wait for \
                     some of them before you make more",
                    count(calls, "open call")
                );
                self.reply(&header, Err(RpcError::new(RpcErrorKind::Overloaded, text)));
                return Ok(());
            }
        }
        if header.flags & READS_MEMORY != 0 {
            caller.lending.is_read();
        }
        let deadline = (header.deadline_micros > 0)
            .then(|| Instant::now() + Duration::from_micros(header.deadline_micros));
        if let Err(error) = self.arenas.borrow(&mut frame) {
            self.reply(&header, Err(error));
            return Ok(());
        }
        let is_in_line = header.flags & IN_LINE != 0 && frame.body.len() >= 8;
        let mut job = Job {
            header,
            payload: Payload::default(),
            unread: None,
            line: is_in_line.then(|| frame.body.get_u64_le()),
            deadline,
            share,
        };
        if remote_read::is_registered(&frame.parts) {
            job.unread = Some(frame);
        } else {
            job.payload = remote_read::gathered(frame, &caller.lending)?;
        }
        self.queue(job);
        Ok(())
    }

    /// Reads the lent parts of a request whose turn has come.
    ///
    /// Returns `None` if another thread continues with the request, or if the connection is over.
    pub(super) fn complete(self: &Arc<Self>, mut job: Job) -> Option<Result<Job, RpcError>> {
        let Some(frame) = job.unread.take() else {
            return Some(Ok(job));
        };
        let (Some(core), Some(caller)) = (self.core.upgrade(), self.caller.get()) else {
            return Some(Err(RpcError::stopping()));
        };
        if remote_read::is_quick(&frame) {
            return self.fetched(job, remote_read::gathered(frame, &caller.lending));
        }
        self.served.lock().waits(job.header.call, job.share, None);
        let (server, header, line) = (Arc::clone(self), job.header, job.line);
        let runtime = core.executor.handle();
        remote_read::fetch(runtime, frame, &caller.lending, move |payload| match server
            .fetched(job, payload)
        {
            Some(Ok(job)) => server.work(job),
            Some(Err(error)) => server.refuse(&header, line, error),
            None => {}
        });
        None
    }

    /// Returns a request with its lent parts, which have been read.
    fn fetched(self: &Arc<Self>, mut job: Job, payload: Answer) -> Option<Result<Job, RpcError>> {
        // A lost caller may already have reused its memory.
        if self.link.is_hung_up() {
            return None;
        }
        job.payload = match payload {
            Ok(payload) => payload,
            Err(error) => return Some(Err(error)),
        };
        let release = Header {
            call: job.header.call,
            ..Header::new(FrameKind::Release)
        };
        match self.link.send(&release, &[], Vec::new()) {
            Ok(()) => Some(Ok(job)),
            Err(error) => {
                fail(self, error);
                None
            }
        }
    }

    /// Serves a request, unless earlier requests of its line come first.
    fn queue(self: &Arc<Self>, job: Job) {
        let (header, share) = (job.header, job.share);
        if let Some(key) = job.line {
            let mut served = self.served.lock();
            match served.lines.get_mut(&key) {
                Some(behind) => {
                    behind.push_back(job);
                    served.waits(header.call, share, Some(key));
                    return;
                }
                None => drop(served.lines.insert(key, VecDeque::new())),
            }
        }
        self.work(job);
    }

    /// Returns the next request of a line after one was answered.
    pub(super) fn next_in(&self, line: Option<u64>) -> Option<Job> {
        let key = line?;
        let mut served = self.served.lock();
        let next = served.lines.get_mut(&key)?.pop_front();
        if next.is_none() {
            served.lines.remove(&key);
        }
        next
    }
}

/// Returns how many bytes of a request stay in memory while it is open.
///
/// A part that lies in an arena of the caller does not count.
fn length(frame: &Frame) -> u64 {
    let parts = frame.parts.iter().map(|part| match part {
        Part::Here(bytes) => bytes.len() as u64,
        Part::Elsewhere(head) if matches!(head.location, PartLocation::Arena { .. }) => 0,
        Part::Elsewhere(head) => head.length,
    });
    frame.body.len() as u64 + parts.sum::<u64>()
}
