//! Parts in arenas: lent and borrowed without being copied, and given back.
//!
//! A part that was borrowed may be kept for long, beyond its call, and its last clone may be
//! dropped anywhere, under any lock. So whoever drops it only notes that, and the driver tells the
//! peer, of all parts at once that were noted meanwhile.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use rdzv_lock::Mutex;
use rdzv_rpc_proto::frame::release::{self, ReleasedPart};
use rdzv_rpc_proto::frame::{Frame, FrameKind, Header, Part, PartHead, PartLocation};
use rdzv_shm::{Leases, Location};

use crate::error::{RpcError, RpcErrorKind};
use crate::wire::link::{Link, LinkPoller};
use crate::wire::poller::LinkId;

/// What is lent over a connection.
pub(crate) struct Arenas {
    /// None where memory cannot be shared.
    leases: Option<Arc<Leases>>,
    returns: Arc<Returns>,
}

/// What the peer has lent and gets back.
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

    /// Lends a part, if it lies in an arena of this process: where the peer finds it.
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
    /// It does so for all of them, so that they are given back also if one of them is not what it
    /// should be.
    ///
    /// # Errors
    ///
    /// Kind Protocol if one cannot be had.
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
            let text =
                format!("a part of the message is in shared memory that cannot be read: {why}");
            RpcError::new(RpcErrorKind::Protocol, text)
        };
        let Some(leases) = &self.leases else {
            return Err(refused(
                "no memory is shared over this connection".to_owned(),
            ));
        };
        let returns = Arc::clone(&self.returns);
        let returned = ReleasedPart {
            arena: location.arena,
            generation: location.generation,
        };
        let borrowed = leases.open(location, move || returns.note(returned));
        borrowed.map_err(|error| refused(error.to_string()))
    }

    /// The peer has given parts back, as the body of its frame says.
    ///
    /// # Errors
    ///
    /// Kind Protocol if it never had one of them.
    pub(crate) fn returned(&self, body: &[u8]) -> Result<(), RpcError> {
        let broken = |text: String| RpcError::new(RpcErrorKind::Protocol, text);
        let all = release::from_bytes(body).map_err(|error| broken(error.to_string()))?;
        for one in all {
            let had = self
                .leases
                .as_ref()
                .is_some_and(|leases| leases.released(one.arena, one.generation));
            // Of an arena that is gone nothing is known any more.
            if !had {
                tracing::debug!(
                    ?one,
                    "the peer gave back what it had not borrowed, or of an arena that is gone"
                );
            }
        }
        Ok(())
    }

    /// The connection is over.
    ///
    /// What is lent stays where it is until nobody has it any more.
    pub(crate) fn end(&self) {
        if let Some(leases) = &self.leases {
            leases.end();
        }
    }

    /// Gives everything back that was noted.
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
        // If there is no driver any more, the end of the connection says it all.
        if first && let Some(poller) = self.poller.upgrade() {
            poller.give_back(self.link);
        }
    }
}

/// Where a part is, if it is in an arena.
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
