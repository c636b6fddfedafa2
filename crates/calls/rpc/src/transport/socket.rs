//! The two halves of a socket, TCP or Unix.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};

use super::{ReadHalf, WriteHalf};

/// The most pieces that the kernel takes at once.
const MOST_PIECES: usize = 1024;

/// A socket: a half of a carrier, or a stream for TLS.
pub(super) struct Socket(pub(super) OwnedFd);

/// The halves of a socket. Each has a descriptor of its own, so that each can be watched by itself.
pub(super) fn halves(socket: OwnedFd) -> io::Result<(Socket, Socket)> {
    let twin = socket.try_clone()?;
    Ok((Socket(socket), Socket(twin)))
}

impl ReadHalf for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        receive(&self.0, into)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl WriteHalf for Socket {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        send(&self.0, parts)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn close(&mut self) {
        close(&self.0);
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        receive(&self.0, into)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send(&self.0, &[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        send(&self.0, parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads what is there.
pub(super) fn receive(socket: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    let received = uninterrupted(|| recv(&socket, &mut *into, RecvFlags::empty()));
    Ok(received.map(|(count, _)| count)?)
}

/// Writes what the socket takes.
pub(super) fn send(socket: impl AsFd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let parts = &parts[..parts.len().min(MOST_PIECES)];
    let mut nothing = SendAncillaryBuffer::default();
    Ok(uninterrupted(|| {
        sendmsg(&socket, parts, &mut nothing, SendFlags::NOSIGNAL)
    })?)
}

/// How much that nobody will read is taken away before a connection is closed, in bytes.
const LEFT_OVER: usize = 1 << 20;

/// Ends the connection for both sides. What was written is delivered: TCP would take it back if
/// something were left unread on this side, so that is read first, as far as it is here.
pub(super) fn close(socket: impl AsFd) {
    // They fail only if the connection is over already.
    let _ = shutdown(&socket, Shutdown::Write);
    let mut piece = [0; 16 << 10];
    for _ in 0..LEFT_OVER / piece.len() {
        if !matches!(receive(&socket, &mut piece), Ok(1..)) {
            break;
        }
    }
    let _ = shutdown(&socket, Shutdown::Both);
}

fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
