//! Rings in shared memory between ranks of one host: what carries data where it can be had.
//!
//! The rank that dials offers a ring together with its hello, over the Unix socket. It holds its data
//! back until the welcome says whether the ring is taken; if it is not, data go over the socket.

use std::os::fd::{AsFd, OwnedFd};

use rdzv_shm::pair::{self, MESSAGE, OfferOneWay};
use rdzv_shm::{Consumer, pass};

use crate::socket::Socket;

/// How much a ring holds: some messages, so that a rank can write the next one while its peer reads the
/// last; and so little that it stays in a processor's cache.
pub(crate) const CAPACITY: usize = 256 * 1024;

/// A ring for the peer at the other end of this socket, or why there is none.
pub(crate) fn offer(socket: &Socket) -> Result<OfferOneWay, String> {
    check(socket)?;
    pair::offer_one_way(CAPACITY).map_err(|error| error.to_string())
}

/// Takes the ring that the peer at the other end of this socket offers, or says why not.
pub(crate) fn accept(
    socket: &Socket,
    message: &[u8; MESSAGE],
    descriptors: Vec<OwnedFd>,
) -> Result<Consumer, String> {
    check(socket)?;
    pair::accept_one_way(message, descriptors).map_err(|error| error.to_string())
}

/// Memory is shared with processes of the same user only: another one could not harm us with it, but
/// has no business there.
fn check(socket: &Socket) -> Result<(), String> {
    if !socket.is_near() {
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
