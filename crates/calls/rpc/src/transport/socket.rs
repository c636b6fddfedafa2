//! Halves of a TCP or Unix socket.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};

use super::{ReadHalf, WriteHalf};

/// Maximum number of pieces in one system call.
const MOST_PIECES: usize = 1024;

/// A socket: a half of a carrier, or a stream for TLS.
pub(super) struct Socket(pub(super) OwnedFd);

/// Splits a socket into halves with separate descriptors to watch.
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

pub(super) fn receive(socket: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    let received = uninterrupted(|| recv(&socket, &mut *into, RecvFlags::empty()));
    Ok(received.map(|(count, _)| count)?)
}

/// Writes as many bytes as the socket accepts.
pub(super) fn send(socket: impl AsFd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let parts = &parts[..parts.len().min(MOST_PIECES)];
    let mut nothing = SendAncillaryBuffer::default();
    Ok(uninterrupted(|| {
        sendmsg(&socket, parts, &mut nothing, SendFlags::NOSIGNAL)
    })?)
}

/// Maximum number of unread bytes to discard before a close.
const LEFT_OVER: usize = 1 << 20;

/// Ends the connection for both sides.
///
/// Written bytes are still delivered. TCP would discard them if this side had unread bytes, so this
/// function first reads the available bytes.
pub(super) fn close(socket: impl AsFd) {
    // These calls fail only if the connection is over already.
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
