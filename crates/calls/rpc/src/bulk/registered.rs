//! Parts in shared arenas: lent and borrowed without a copy, then returned.
//!
//! A worker may keep a borrowed part long after its call. It may drop the last clone on any thread
//! and under any lock. The drop therefore only records the part. The driver then reports all
//! recorded parts to the peer in one frame.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use rdzv_lock::Mutex;
use rdzv_rpc_proto::frame::release::{self, ReleasedPart};
use rdzv_rpc_proto::frame::{Frame, FrameKind, Header, Part, PartHead, PartLocation};
use rdzv_shm::{Leases, Location};

use crate::error::{RpcError, RpcErrorKind};
use crate::wire::link::{Link, LinkPoller};
use crate::wire::poller::LinkId;

/// Parts that both sides lend over a connection.
pub(crate) struct Arenas {
    /// `None` if the connection does not use shared memory.
    leases: Option<Arc<Leases>>,
    returns: Arc<Returns>,
}

/// Borrowed parts that must be returned to the peer.
struct Returns {
    link: LinkId,
    poller: Weak<LinkPoller>,
    noted: Mutex<Vec<ReleasedPart>>,
}

impl Arenas {
    pub(crate) fn new(link: &Link) -> Self {
        Self {
            leases: link.leases.clone(),
            returns: Arc::new(Returns {
                link: link.id(),
                poller: Arc::downgrade(link.poller()),
                noted: Mutex::default(),
            }),
        }
    }

    /// Lends a part that lies in an arena of this process; returns its location.
    pub(crate) fn lend(&self, bytes: &Bytes) -> Option<PartLocation> {
        let location = self.leases.as_ref()?.grant(bytes)?;
        Some(PartLocation::Arena {
            arena: location.arena,
            generation: location.generation,
            offset: location.offset,
        })
    }

    /// Borrows the parts of a frame that are in arenas of the peer.
    ///
    /// The other parts are borrowed even after an error, so that they are returned.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::Protocol`] if a part cannot be borrowed.
    pub(crate) fn borrow(&self, frame: &mut Frame) -> Result<(), RpcError> {
        let mut all = Ok(());
        for part in &mut frame.parts {
            if let Part::Elsewhere(head) = part
                && let Some(location) = location(head)
            {
                match self.borrow_one(location) {
                    Ok(bytes) => *part = Part::Here(bytes),
                    Err(error) => all = Err(error),
                }
            }
        }
        all
    }

    fn borrow_one(&self, location: Location) -> Result<Bytes, RpcError> {
        let refused = |why: String| {
            let text = format!("cannot read a part of the message from shared memory: {why}");
            RpcError::new(RpcErrorKind::Protocol, text)
        };
        let Some(leases) = &self.leases else {
            return Err(refused("this connection does not share memory".to_owned()));
        };
        let returns = Arc::clone(&self.returns);
        let returned = ReleasedPart {
            arena: location.arena,
            generation: location.generation,
        };
        let borrowed = leases.open(location, move || returns.note(returned));
        borrowed.map_err(|error| refused(error.to_string()))
    }

    /// Accepts parts that the peer has returned, listed in the body of its frame.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::Protocol`] if the body cannot be read.
    pub(crate) fn returned(&self, body: &[u8]) -> Result<(), RpcError> {
        let broken = |text: String| RpcError::new(RpcErrorKind::Protocol, text);
        let all = release::from_bytes(body).map_err(|error| broken(error.to_string()))?;
        for one in all {
            let had = self
                .leases
                .as_ref()
                .is_some_and(|leases| leases.released(one.arena, one.generation));
            // Nothing is known about a removed arena.
            if !had {
                tracing::debug!(
                    ?one,
                    "the peer released a part that it had not borrowed, or a part of a removed \
                     arena"
                );
            }
        }
        Ok(())
    }

    /// Handles the end of the connection.
    ///
    /// Lent parts stay in memory until all their users have dropped them.
    pub(crate) fn end(&self) {
        if let Some(leases) = &self.leases {
            leases.end();
        }
    }

    /// Returns all recorded parts to the peer.
    pub(crate) fn give_back(&self, link: &Link) -> Result<(), RpcError> {
        let noted = std::mem::take(&mut *self.returns.noted.lock());
        if noted.is_empty() {
            return Ok(());
        }
        let header = Header::new(FrameKind::Release);
        link.send(&header, &release::to_bytes(&noted), Vec::new())
    }
}

impl Returns {
    fn note(&self, returned: ReleasedPart) {
        let mut noted = self.noted.lock();
        let first = noted.is_empty();
        noted.push(returned);
        drop(noted);
        // Without a driver, the end of the connection returns all parts.
        if first && let Some(poller) = self.poller.upgrade() {
            poller.give_back(self.link);
        }
    }
}

fn location(head: &PartHead) -> Option<Location> {
    let PartLocation::Arena {
        arena,
        generation,
        offset,
    } = head.location
    else {
        return None;
    };
    Some(Location {
        arena,
        generation,
        offset,
        length: head.length,
    })
}
