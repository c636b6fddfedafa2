//! Memory that ranks of one host share: a ring for each direction between two of them, and a shared
//! buffer of each rank that all others can read.
//!
//! The rank that dials offers a ring and its shared buffer together with its hello, over the Unix
//! socket. It holds its data back until the accept frame says whether they are taken; if they are
//! not, data go over the socket.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use rdzv_shm::pair::{self, MESSAGE, OfferOneWay};
use rdzv_shm::{Consumer, PeerBuffer, SharedBuffer, pass};

use crate::socket::Socket;

/// Capacity of a ring in bytes: some messages, so that a rank can write the next one while its peer
/// reads the last; and so little that it stays in a processor's cache.
pub(crate) const CAPACITY: usize = 256 * 1024;

/// Length of a shared buffer in bytes.
///
/// It is used in two halves; each stays in a processor's cache.
pub(crate) const BUFFER: usize = 2 * HALF;

/// One of the two halves.
pub(crate) const HALF: usize = 1024 * 1024;

/// The memory that a peer on this host shares.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Brings its data.
    pub(crate) ring: Consumer,
    /// Has what it has written for all.
    pub(crate) buffer: PeerBuffer,
}

/// The shared buffer of this rank.
pub(crate) fn own_buffer() -> Option<SharedBuffer> {
    let refused =
        |error: &_| tracing::debug!(%error, "no memory is shared with ranks of this host");
    SharedBuffer::new(BUFFER).inspect_err(refused).ok()
}

/// A ring for the peer at the other end of this socket, or why there is none.
pub(crate) fn offer(socket: &Socket) -> Result<OfferOneWay, String> {
    check(socket)?;
    pair::offer_one_way(CAPACITY).map_err(|error| error.to_string())
}

/// Sends a hello, the ring and the shared buffer in one message: the first one always fits.
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
            "the connection took {sent} bytes of the hello only"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Takes what the peer at the other end of this socket offers, or says why not.
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

/// Memory is shared with processes of the same user only: another one could not harm us with it,
/// but has no business there.
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
