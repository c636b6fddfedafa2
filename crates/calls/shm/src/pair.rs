//! Rings that one process offers to another, for both directions or for one.
//!
//! ```text
//!   offerer                                        acceptor
//!   offer(capacity)
//!   send message() and descriptors()  ─ socket ─►  receive
//!                                                  accept(message, descriptors) ─► SharedLink
//!   taken() ─► SharedLink             ◄─ socket ─  "accepted", in a message of the caller
//! ```
//!
//! A refusal by the acceptor costs nothing: both sides continue over the socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::doorbell::Doorbell;
use crate::error::{Result, ShmError};
use crate::ring::{Consumer, LARGEST, Producer, RingLayout, SMALLEST};
use crate::sealed::{self, Memory, Pages};

/// Default capacity of a ring: 256 KiB.
pub const CAPACITY: usize = 256 << 10;

/// Number of bytes beside the descriptors of an offer.
pub const MESSAGE: usize = 16;

/// Number of descriptors of an offer: the memory, and two doorbells per ring.
pub const DESCRIPTORS: usize = 5;

const MAGIC: [u8; 4] = *b"RZSM";
const VERSION: u16 = 1;

/// Both directions of a connection through shared memory.
#[derive(Debug)]
pub struct SharedLink {
    /// Sender of bytes to the peer.
    pub producer: Producer,
    /// Receiver of bytes from the peer.
    pub consumer: Consumer,
}

/// Offer that the peer has yet to accept; by default of a [`SharedLink`].
#[derive(Debug)]
pub struct Offer<T = SharedLink, const N: usize = DESCRIPTORS> {
    end: T,
    capacity: usize,
    /// Memory, then the doorbells of each ring.
    descriptors: [OwnedFd; N],
}

/// Offers a link with two rings of this many bytes.
///
/// The capacity is rounded up to a power of two, and limited to 4 KiB to 64 MiB.
///
/// # Errors
///
/// [`ShmError::System`] if the system has no memory or descriptors left for it.
pub fn offer(capacity: usize) -> Result<Offer> {
    // The first ring is for the bytes of the offerer.
    Offer::new(capacity, |[outward, inward]| link(outward, inward))
}

impl<T, const N: usize> Offer<T, N> {
    fn new<const RINGS: usize>(
        capacity: usize,
        end: impl FnOnce([Ring; RINGS]) -> T,
    ) -> Result<Self> {
        let capacity = capacity.clamp(SMALLEST, LARGEST).next_power_of_two();
        let length = RINGS * RingLayout::length(capacity);
        let (file, memory) = sealed::create("rdzv-rings", length, Pages::Reserved)?;
        let mut descriptors = vec![file];
        let mut doorbells = Vec::new();
        for _ in 0..RINGS {
            let (data, space) = (Doorbell::new()?, Doorbell::new()?);
            descriptors.push(data.duplicate()?.into());
            descriptors.push(space.duplicate()?.into());
            doorbells.push((data, space));
        }
        let descriptors = <[OwnedFd; N]>::try_from(descriptors);
        Ok(Self {
            end: end(laid_out(memory, capacity, doorbells)),
            capacity,
            descriptors: descriptors.expect("the memory, and two doorbells for each ring"),
        })
    }

    /// Returns the bytes to send to the peer with the descriptors.
    pub fn message(&self) -> [u8; MESSAGE] {
        message(self.capacity, (N / 2) as u8)
    }

    /// Returns the descriptors to pass to the peer, in this order.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; N] {
        self.descriptors.each_ref().map(AsFd::as_fd)
    }

    /// Returns this side's end, and closes the descriptors.
    ///
    /// Call this once the peer has accepted.
    pub fn taken(self) -> T {
        self.end
    }
}

/// Accepts a link that a peer offers.
///
/// # Errors
///
/// [`ShmError::Refused`] if the offer is not that of a correct peer of this version;
/// [`ShmError::System`] if the system has no memory or descriptors left for it.
pub fn accept(message: &[u8; MESSAGE], descriptors: Vec<OwnedFd>) -> Result<SharedLink> {
    let [inward, outward] = open(message, descriptors)?;
    Ok(link(outward, inward))
}

/// Number of descriptors of an offer of one direction.
pub const DESCRIPTORS_ONE_WAY: usize = 3;

/// Offer of one direction, towards the peer.
pub type OfferOneWay = Offer<Producer, DESCRIPTORS_ONE_WAY>;

/// Offers one ring of this many bytes, towards the peer.
///
/// Otherwise this is the same as [`offer`].
///
/// # Errors
///
/// [`ShmError::System`] if the system has no memory or descriptors left for it.
pub fn offer_one_way(capacity: usize) -> Result<OfferOneWay> {
    Offer::new(capacity, |[ring]| {
        Producer::new(ring.layout, ring.data, ring.space)
    })
}

/// Accepts one direction that a peer offers.
///
/// # Errors
///
/// Returns the errors of [`accept`].
pub fn accept_one_way(message: &[u8; MESSAGE], descriptors: Vec<OwnedFd>) -> Result<Consumer> {
    let [ring] = open(message, descriptors)?;
    Ok(Consumer::new(ring.layout, ring.data, ring.space))
}

/// Ring that belongs to no side yet.
struct Ring {
    layout: RingLayout,
    data: Doorbell,
    space: Doorbell,
}

fn message(capacity: usize, rings: u8) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[..4].copy_from_slice(&MAGIC);
    message[4..6].copy_from_slice(&VERSION.to_ne_bytes());
    message[6] = rings;
    message[8..].copy_from_slice(&(capacity as u64).to_ne_bytes());
    message
}

fn open<const RINGS: usize>(
    message: &[u8; MESSAGE],
    descriptors: Vec<OwnedFd>,
) -> Result<[Ring; RINGS]> {
    let refused = |found: String| Err(ShmError::refused("an offer of rings", found));
    if message[..4] != MAGIC {
        return refused("it does not begin with the expected bytes".to_owned());
    }
    let version = u16::from_ne_bytes([message[4], message[5]]);
    if version != VERSION {
        return refused(format!(
            "it has version {version}, but this process supports version {VERSION}"
        ));
    }
    let expected = 1 + 2 * RINGS;
    if usize::from(message[6]) != RINGS || descriptors.len() != expected {
        return refused(format!(
            "it has {} descriptors for {} rings instead of {expected} for {RINGS}",
            descriptors.len(),
            message[6]
        ));
    }
    let mut number = [0; 8];
    number.copy_from_slice(&message[8..]);
    let number = u64::from_ne_bytes(number);
    let is_ours =
        |capacity: &usize| capacity.is_power_of_two() && (SMALLEST..=LARGEST).contains(capacity);
    let Some(capacity) = usize::try_from(number).ok().filter(is_ours) else {
        return refused(format!("a ring of {number} bytes has an invalid size"));
    };
    let mut descriptors = descriptors.into_iter();
    let file = descriptors.next().expect("they were counted");
    let mut doorbells = Vec::new();
    while let (Some(data), Some(space)) = (descriptors.next(), descriptors.next()) {
        doorbells.push((Doorbell::from_peer(data)?, Doorbell::from_peer(space)?));
    }
    let memory = sealed::open(&file, RINGS * RingLayout::length(capacity))?;
    Ok(laid_out(memory, capacity, doorbells))
}

fn laid_out<const RINGS: usize>(
    memory: Memory,
    capacity: usize,
    doorbells: Vec<(Doorbell, Doorbell)>,
) -> [Ring; RINGS] {
    let memory = Arc::new(memory);
    let mut doorbells = doorbells.into_iter();
    std::array::from_fn(|index| {
        let offset = index * RingLayout::length(capacity);
        let (data, space) = doorbells.next().expect("each ring has two");
        Ring {
            layout: RingLayout::new(Arc::clone(&memory), offset, capacity),
            data,
            space,
        }
    })
}

fn link(outward: Ring, inward: Ring) -> SharedLink {
    SharedLink {
        producer: Producer::new(outward.layout, outward.data, outward.space),
        consumer: Consumer::new(inward.layout, inward.data, inward.space),
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use rustix::io::dup;

    use super::*;

    fn passed<T, const N: usize>(offer: &Offer<T, N>) -> Vec<OwnedFd> {
        let all = offer.descriptors();
        all.iter().map(|one| dup(one).unwrap()).collect()
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
        assert!(refusal(&other, passed(&offer)).contains("the expected bytes"));
        other = good;
        other[4] = 9;
        assert!(refusal(&other, passed(&offer)).contains("it has version 9"));
        for capacity in [0_u64, 4095, 1 << 40, u64::MAX, 12288] {
            other = good;
            other[8..].copy_from_slice(&capacity.to_ne_bytes());
            assert!(refusal(&other, passed(&offer)).contains("has an invalid size"));
        }
        // The claimed size is larger than the memory.
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
            text.contains("it has 4 descriptors for 2 rings instead of 5 for 2"),
            "{text}"
        );
        let mut descriptors = passed(&offer);
        descriptors.swap(0, 1);
        let text = refusal(&offer.message(), descriptors);
        assert!(text.contains("cannot use a doorbell"), "{text}");
    }

    #[test]
    fn one_direction_is_half_of_a_link() {
        let offer = offer_one_way(CAPACITY).unwrap();
        assert!(refusal(&offer.message(), passed(&offer)).contains("instead of 5 for 2"));
        let mut consumer = accept_one_way(&offer.message(), passed(&offer)).unwrap();
        let mut producer = offer.taken();
        assert_eq!(producer.write(&[IoSlice::new(b"onward")]).unwrap(), 6);
        let mut bytes = [0; 16];
        assert_eq!(consumer.read(&mut bytes).unwrap(), 6);
        assert_eq!(&bytes[..6], b"onward");
    }
}
