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
        let mut job = Job {
            header,
            payload: Payload::default(),
            line: None,
            deadline,
            share,
        };
        if !remote_read::is_registered(&frame.parts) {
            job.payload = remote_read::gathered(frame, &caller.lending)?;
            self.queue(job);
            return Ok(());
        }
        let Some(core) = self.core.upgrade() else {
            return Ok(());
        };
        self.served.lock().waits(header.call, share, None);
        let server = Arc::clone(self);
        remote_read::fetch(
            core.executor.handle(),
            frame,
            &caller.lending,
            move |payload| server.fetched(job, payload),
        );
        Ok(())
    }

    /// Continues with a request whose lent parts have been read.
    fn fetched(self: &Arc<Self>, mut job: Job, payload: Answer) {
        // A lost caller may already have reused its memory.
        if self.link.is_hung_up() {
            return;
        }
        match payload {
            Ok(payload) => {
                job.payload = payload;
                let release = Header {
                    call: job.header.call,
                    ..Header::new(FrameKind::Release)
                };
                match self.link.send(&release, &[], Vec::new()) {
                    Ok(()) => self.queue(job),
                    Err(error) => fail(self, error),
                }
            }
            Err(error) => {
                self.served.lock().waited(job.header.call);
                self.reply(&job.header, Err(error));
            }
        }
    }

    /// Serves a request, unless earlier requests of its line come first.
    fn queue(self: &Arc<Self>, mut job: Job) {
        let (header, share) = (job.header, job.share);
        if header.flags & IN_LINE != 0 && job.payload.body.len() >= 8 {
            let key = job.payload.body.get_u64_le();
            job.line = Some(key);
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
