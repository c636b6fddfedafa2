//! The two halves of a carrier over one TLS session.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rdzv_lock::Mutex;
use rdzv_trust::Session;

use super::socket::{self, Socket};
use super::{ReadHalf, WriteHalf};

/// A TLS session over a socket of this crate.
pub(super) type TlsSession = Session<Socket>;

pub(super) struct TlsRead {
    session: Arc<Mutex<TlsSession>>,
    watched: OwnedFd,
}

pub(super) struct TlsWrite {
    session: Arc<Mutex<TlsSession>>,
    watched: OwnedFd,
}

/// The halves of a session whose handshake is over. They share it: neither waits while it has it.
pub(super) fn halves(session: TlsSession) -> io::Result<(TlsRead, TlsWrite)> {
    let first = session.stream().0.try_clone()?;
    let second = session.stream().0.try_clone()?;
    let session = Arc::new(Mutex::new(session));
    let read = TlsRead {
        session: Arc::clone(&session),
        watched: first,
    };
    let write = TlsWrite {
        session,
        watched: second,
    };
    Ok((read, write))
}

impl ReadHalf for TlsRead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.session.lock().read(into)
    }

    fn prepare_to_sleep(&mut self) -> bool {
        !self.session.lock().has_plaintext()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }
}

impl WriteHalf for TlsWrite {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.session.lock().write(parts)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    fn close(&mut self) {
        let mut session = self.session.lock();
        session.close();
        socket::close(&session.stream().0);
    }
}
