//! Two rings, one for each direction, that one process offers and another accepts.
//!
//! ```text
//!   offerer                                        acceptor
//!   offer(capacity)
//!   send message() and descriptors()  ─ socket ─►  receive
//!                                                  accept(message, descriptors) ─► Link
//!   taken() ─► Link                   ◄─ socket ─  "accepted", in the words of the caller
//! ```
//!
//! What an acceptor refuses costs nothing: both go on over the socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::doorbell::Doorbell;
use crate::error::ShmError;
use crate::ring::{Consumer, LARGEST, Place, Producer, SMALLEST};
use crate::sealed::{self, Memory, Pages};

/// The capacity of a ring if nothing else is said: 256 KiB.
pub const CAPACITY: usize = 256 << 10;

/// How many bytes go with the descriptors of an offer.
pub const MESSAGE: usize = 16;

/// How many descriptors make up an offer: the memory, and two doorbells for each ring.
pub const DESCRIPTORS: usize = 5;

const MAGIC: [u8; 4] = *b"RZSM";
const VERSION: u16 = 1;

/// Both directions of a connection through shared memory.
#[derive(Debug)]
pub struct Link {
    /// Carries bytes to the peer.
    pub producer: Producer,
    /// Carries the peer's bytes here.
    pub consumer: Consumer,
}

/// A link that the peer has yet to accept.
#[derive(Debug)]
pub struct Offer {
    link: Link,
    capacity: usize,
    descriptors: [OwnedFd; DESCRIPTORS],
}

/// Creates a link whose rings hold this many bytes each, rounded up to a power of two from 4 KiB to 64 MiB.
///
/// # Errors
///
/// [`ShmError::System`] if the system has no memory or descriptors left for it.
pub fn offer(capacity: usize) -> Result<Offer, ShmError> {
    let capacity = capacity.clamp(SMALLEST, LARGEST).next_power_of_two();
    let (file, memory) = sealed::create("rdzv-rings", length(capacity), Pages::Reserved)?;
    let bells = Bells::new()?;
    let descriptors = bells.duplicate()?.into_descriptors(file);
    Ok(Offer {
        link: link(memory, capacity, bells, Side::Offerer),
        capacity,
        descriptors,
    })
}

impl Offer {
    /// What the peer needs to be told beside the descriptors.
    pub fn message(&self) -> [u8; MESSAGE] {
        let mut message = [0; MESSAGE];
        message[..4].copy_from_slice(&MAGIC);
        message[4..6].copy_from_slice(&VERSION.to_ne_bytes());
        message[8..].copy_from_slice(&(self.capacity as u64).to_ne_bytes());
        message
    }

    /// What has to be passed to the peer, in this order.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; DESCRIPTORS] {
        self.descriptors.each_ref().map(AsFd::as_fd)
    }

    /// This side's end of the link, once the peer has accepted. Closes what was passed.
    pub fn taken(self) -> Link {
        self.link
    }
}

/// The other end of a link that a peer offers.
///
/// # Errors
///
/// [`ShmError::Refused`] if it is not what an honest peer of this version passes, and
/// [`ShmError::System`] if the system has no memory or descriptors left for it.
pub fn accept(message: &[u8; MESSAGE], descriptors: Vec<OwnedFd>) -> Result<Link, ShmError> {
    const WHAT: &str = "an offer of rings";
    if message[..4] != MAGIC {
        return Err(ShmError::refused(WHAT, "it begins with other bytes"));
    }
    let version = u16::from_ne_bytes([message[4], message[5]]);
    if version != VERSION {
        let found = format!("it has version {version}, and this process knows {VERSION}");
        return Err(ShmError::refused(WHAT, found));
    }
    let mut capacity = [0; 8];
    capacity.copy_from_slice(&message[8..]);
    let capacity = u64::from_ne_bytes(capacity);
    let capacity = usize::try_from(capacity)
        .ok()
        .filter(|capacity| capacity.is_power_of_two() && (SMALLEST..=LARGEST).contains(capacity))
        .ok_or_else(|| {
            let found = format!("a ring of {capacity} bytes is not one of ours");
            ShmError::refused(WHAT, found)
        })?;
    let descriptors = <[OwnedFd; DESCRIPTORS]>::try_from(descriptors).map_err(|descriptors| {
        let found = format!(
            "{} descriptors came with it instead of {DESCRIPTORS}",
            descriptors.len()
        );
        ShmError::refused(WHAT, found)
    })?;
    let (file, bells) = Bells::from_descriptors(descriptors)?;
    let memory = sealed::open(&file, length(capacity))?;
    Ok(link(memory, capacity, bells, Side::Acceptor))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Offerer,
    Acceptor,
}

/// Of one ring.
#[derive(Debug)]
struct Bell {
    data: Doorbell,
    space: Doorbell,
}

/// Of both rings: the offerer writes into the first one.
#[derive(Debug)]
struct Bells([Bell; 2]);

impl Bells {
    fn new() -> Result<Self, ShmError> {
        let bell = || {
            Ok(Bell {
                data: Doorbell::new()?,
                space: Doorbell::new()?,
            })
        };
        Ok(Self([bell()?, bell()?]))
    }

    fn duplicate(&self) -> Result<Self, ShmError> {
        let copy = |bell: &Bell| {
            Ok(Bell {
                data: bell.data.duplicate()?,
                space: bell.space.duplicate()?,
            })
        };
        Ok(Self([copy(&self.0[0])?, copy(&self.0[1])?]))
    }

    fn into_descriptors(self, file: OwnedFd) -> [OwnedFd; DESCRIPTORS] {
        let [first, second] = self.0;
        [
            file,
            first.data.into(),
            first.space.into(),
            second.data.into(),
            second.space.into(),
        ]
    }

    fn from_descriptors(descriptors: [OwnedFd; DESCRIPTORS]) -> Result<(OwnedFd, Self), ShmError> {
        let [file, data, space, data_back, space_back] = descriptors;
        let bell = |data, space| {
            Ok(Bell {
                data: Doorbell::from_peer(data)?,
                space: Doorbell::from_peer(space)?,
            })
        };
        Ok((
            file,
            Self([bell(data, space)?, bell(data_back, space_back)?]),
        ))
    }
}

fn length(capacity: usize) -> usize {
    2 * Place::length(capacity)
}

fn link(memory: Memory, capacity: usize, bells: Bells, side: Side) -> Link {
    let memory = Arc::new(memory);
    let first = Place::new(Arc::clone(&memory), 0, capacity);
    let second = Place::new(memory, Place::length(capacity), capacity);
    let [there, back] = bells.0;
    let (outward, out, inward, into) = match side {
        Side::Offerer => (first, there, second, back),
        Side::Acceptor => (second, back, first, there),
    };
    Link {
        producer: Producer::new(outward, out.data, out.space),
        consumer: Consumer::new(inward, into.data, into.space),
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use rustix::io::dup;

    use super::*;

    fn passed(offer: &Offer) -> Vec<OwnedFd> {
        offer
            .descriptors()
            .iter()
            .map(|one| dup(one).unwrap())
            .collect()
    }

    fn refusal(message: &[u8; MESSAGE], descriptors: Vec<OwnedFd>) -> String {
        accept(message, descriptors).unwrap_err().to_string()
    }

    #[test]
    fn both_directions_carry_bytes() {
        let offer = offer(CAPACITY).unwrap();
        let mut theirs = accept(&offer.message(), passed(&offer)).unwrap();
        let mut mine = offer.taken();
        assert_eq!(mine.producer.write(&[IoSlice::new(b"ping")]).unwrap(), 4);
        let mut bytes = [0; 16];
        assert_eq!(theirs.consumer.read(&mut bytes).unwrap(), 4);
        assert_eq!(&bytes[..4], b"ping");
        assert_eq!(theirs.producer.write(&[IoSlice::new(b"pong!")]).unwrap(), 5);
        assert_eq!(mine.consumer.read(&mut bytes).unwrap(), 5);
        assert_eq!(&bytes[..5], b"pong!");
        assert_eq!(mine.consumer.read(&mut bytes).unwrap(), 0);
    }

    #[test]
    fn a_capacity_is_rounded_to_one_that_can_be() {
        for (wanted, capacity) in [(0, 4096), (5000, 8192), (CAPACITY, CAPACITY)] {
            let mut link = offer(wanted).unwrap().taken();
            assert_eq!(link.producer.space().unwrap(), capacity);
        }
    }

    #[test]
    fn an_offer_of_something_else_is_refused() {
        let offer = offer(4096).unwrap();
        let good = offer.message();
        let mut other = good;
        other[0] = b'X';
        assert!(refusal(&other, passed(&offer)).contains("other bytes"));
        other = good;
        other[4] = 9;
        assert!(refusal(&other, passed(&offer)).contains("it has version 9"));
        for capacity in [0_u64, 4095, 1 << 40, u64::MAX, 12288] {
            other = good;
            other[8..].copy_from_slice(&capacity.to_ne_bytes());
            assert!(refusal(&other, passed(&offer)).contains("is not one of ours"));
        }
        // Larger than what is there.
        other[8..].copy_from_slice(&8192_u64.to_ne_bytes());
        assert!(refusal(&other, passed(&offer)).contains("instead of"));
    }

    #[test]
    fn an_offer_without_its_descriptors_is_refused() {
        let offer = offer(4096).unwrap();
        let mut descriptors = passed(&offer);
        descriptors.pop();
        let text = refusal(&offer.message(), descriptors);
        assert!(
            text.contains("4 descriptors came with it instead of 5"),
            "{text}"
        );
        let mut descriptors = passed(&offer);
        descriptors.swap(0, 1);
        let text = refusal(&offer.message(), descriptors);
        assert!(text.contains("doorbell is refused"), "{text}");
    }
}
