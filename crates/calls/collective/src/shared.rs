//! Shared memory between ranks of one host.
//!
//! There is a ring for each direction between two ranks, and a shared buffer of each rank that all
//! other ranks can read.
//!
//! The rank that dials offers a ring and its shared buffer together with its hello, over the Unix
//! socket. The dialling rank holds its data back until the accept frame arrives. If the peer
//! declines the offer, data goes over the socket.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use rdzv_shm::pair::{self, MESSAGE, OfferOneWay};
use rdzv_shm::{Consumer, PeerBuffer, SharedBuffer, pass};

use crate::socket::Socket;

/// Capacity of a ring in bytes.
///
/// It holds several messages, so that a rank can write one while its peer reads the previous one.
/// It is small enough to stay in a processor's cache.
pub(crate) const CAPACITY: usize = 256 * 1024;

/// Length of a shared buffer in bytes.
///
/// The buffer is used in two halves; each stays in a processor's cache.
pub(crate) const BUFFER: usize = 2 * HALF;

/// Length of one of the two halves.
pub(crate) const HALF: usize = 1024 * 1024;

/// Memory that a peer on this host shares.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Ring with the data of the peer.
    pub(crate) ring: Consumer,
    /// Shared buffer of the peer, with data for all ranks.
    pub(crate) buffer: PeerBuffer,
}

pub(crate) fn own_buffer() -> Option<SharedBuffer> {
    let refused =
        |error: &_| tracing::debug!(%error, "no memory is shared with ranks of this host");
    SharedBuffer::new(BUFFER).inspect_err(refused).ok()
}

/// Creates a ring for the peer of this socket, or returns the reason why not.
pub(crate) fn offer(socket: &Socket) -> Result<OfferOneWay, String> {
    check(socket)?;
    pair::offer_one_way(CAPACITY).map_err(|error| error.to_string())
}

/// Sends a hello, the ring and the shared buffer in one message.
///
/// The message always fits into the socket's buffer, because it is the first one.
pub(crate) fn pass(
    socket: &Socket,
    hello: &[u8],
    ring: &OfferOneWay,
    buffer: &SharedBuffer,
) -> Result<(), String> {
    let message = ring.message();
    let parts = [IoSlice::new(hello), IoSlice::new(&message)];
    let [memory, data, space] = ring.descriptors();
    let descriptors = [memory, data, space, buffer.descriptor()];
    match pass::send(socket, &parts, &descriptors) {
        Ok(sent) if sent == hello.len() + message.len() => Ok(()),
        Ok(sent) => Err(format!(
            "the connection accepted only {sent} bytes of the hello"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Accepts the offer of the peer of this socket, or returns the reason why not.
pub(crate) fn accept(
    socket: &Socket,
    message: &[u8; MESSAGE],
    mut descriptors: Vec<OwnedFd>,
) -> Result<Shared, String> {
    check(socket)?;
    let buffer = descriptors.pop().ok_or("it passed no shared buffer")?;
    Ok(Shared {
        buffer: PeerBuffer::open(&buffer, BUFFER).map_err(|error| error.to_string())?,
        ring: pair::accept_one_way(message, descriptors).map_err(|error| error.to_string())?,
    })
}

/// Checks that the peer of this socket may share memory.
///
/// Only processes of the same user on this host may. Other processes could do no harm with the
/// memory, but have no reason to share.
fn check(socket: &Socket) -> Result<(), String> {
    if !socket.is_local() {
        return Err("it is not on this host".to_owned());
    }
    let peer = pass::peer(socket.as_fd()).map_err(|error| error.to_string())?;
    let ours = rustix::process::geteuid().as_raw();
    if peer.user == ours {
        return Ok(());
    }
    Err(format!(
        "its process belongs to user {}, this one to user {ours}",
        peer.user
    ))
}
