//! Descriptors over a Unix socket, and the identity of the peer.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::error::uninterrupted;

/// Maximum number of descriptors in one message.
pub const MOST: usize = 8;

/// Sends bytes, and descriptors with the first byte.
///
/// Returns the number of bytes sent.
///
/// The caller sends the remaining bytes without descriptors. The descriptors stay open here.
///
/// # Errors
///
/// Returns the errors of the socket, including [`io::ErrorKind::WouldBlock`];
/// [`io::ErrorKind::InvalidInput`] for descriptors without bytes, or for more than [`MOST`]
/// descriptors. In these cases nothing was sent.
pub fn send(
    socket: impl AsFd,
    bytes: &[IoSlice<'_>],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let length: usize = bytes.iter().map(|part| part.len()).sum();
    if descriptors.len() > MOST || (length == 0 && !descriptors.is_empty()) {
        let reason = format!(
            "cannot pass {} descriptors with {length} bytes: at most {MOST} descriptors can go \
             with at least one byte",
            descriptors.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        debug_assert!(fits, "the space is for that many");
    }
    let flags = SendFlags::NOSIGNAL;
    Ok(uninterrupted(|| {
        sendmsg(&socket, bytes, &mut control, flags)
    })?)
}

/// Receives bytes and their descriptors; 0 bytes at the end of the stream.
///
/// The descriptors are closed on exec.
///
/// # Errors
///
/// Returns the errors of the socket, including [`io::ErrorKind::WouldBlock`];
/// [`io::ErrorKind::InvalidData`] if more than [`MOST`] descriptors arrived, or if this process has
/// reached its limit of open files. In that case all of the descriptors are closed.
pub fn receive(socket: impl AsFd, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = uninterrupted(|| {
        let into = &mut [IoSliceMut::new(into)];
        recvmsg(&socket, into, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "cannot receive all descriptors of a message: the peer passed more than {MOST}, or \
                 this process has reached its limit of open files"
            ),
        ));
    }
    Ok((received.bytes, descriptors))
}

/// Process at the other end of a Unix socket, as the kernel reports it.
///
/// A process cannot forge these values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id in this PID namespace.
    ///
    /// 0 if the process is in a namespace that is not visible here.
    pub process: u32,
    /// Effective user id.
    pub user: u32,
    /// Effective group id.
    pub group: u32,
}

/// Returns the peer process, as it was when it connected or listened.
///
/// # Errors
///
/// Returns the errors of the socket.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    // rustix does not allow process id 0, but the kernel does.
    let credentials = getsockopt(&socket, PeerCredentials)?;
    Ok(Peer {
        process: u32::try_from(credentials.pid()).unwrap_or(0),
        user: credentials.uid(),
        group: credentials.gid(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use rustix::io::fcntl_getfd;
    use rustix::pipe::pipe;

    use super::*;

    #[test]
    fn a_descriptor_arrives_with_its_bytes_and_works() {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let (read_end, write_end) = pipe().unwrap();
        let parts = [IoSlice::new(b"he"), IoSlice::new(b"re")];
        assert_eq!(send(&mine, &parts, &[read_end.as_fd()]).unwrap(), 4);
        let mut bytes = [0; 16];
        let (length, descriptors) = receive(&theirs, &mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"here");
        let [passed] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
        assert!(
            fcntl_getfd(&passed)
                .unwrap()
                .contains(rustix::io::FdFlags::CLOEXEC)
        );
        std::fs::File::from(write_end).write_all(b"x").unwrap();
        let mut byte = [0];
        std::fs::File::from(passed).read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
    }

    #[test]
    fn bytes_alone_bring_no_descriptors_and_the_end_brings_nothing() {
        let (mine, theirs) = UnixStream::pair().unwrap();
        send(&mine, &[IoSlice::new(b"words")], &[]).unwrap();
        drop(mine);
        let mut bytes = [0; 16];
        assert_eq!(receive(&theirs, &mut bytes).unwrap().0, 5);
        let (length, descriptors) = receive(&theirs, &mut bytes).unwrap();
        assert_eq!((length, descriptors.len()), (0, 0));
    }

    #[test]
    fn too_many_descriptors_are_not_sent() {
        let (mine, _theirs) = UnixStream::pair().unwrap();
        let many = [mine.as_fd(); MOST + 1];
        let error = send(&mine, &[IoSlice::new(b"x")], &many).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let error = send(&mine, &[], &many[..1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_flood_of_descriptors_is_an_error() {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let many = [mine.as_fd(); 40];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(40))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(
            &mine,
            &[IoSlice::new(b"x")],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
        let error = receive(&theirs, &mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (mine, _theirs) = UnixStream::pair().unwrap();
        let peer = peer(&mine).unwrap();
        assert_eq!(peer.process, std::process::id());
        assert_eq!(peer.user, rustix::process::geteuid().as_raw());
    }
}
