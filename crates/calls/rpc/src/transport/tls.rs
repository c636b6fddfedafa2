//! Halves of a carrier over one TLS session.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rdzv_lock::Mutex;
use rdzv_trust::Session;

use super::socket::{self, Socket};
use super::{ReadHalf, WriteHalf};

/// A TLS session over a socket of this crate.
pub(super) type TlsSession = Session<Socket>;

pub(super) struct TlsHalf {
    session: Arc<Mutex<TlsSession>>,
    watched: OwnedFd,
}

/// Splits a session after its handshake.
///
/// The halves share the session: no half waits while it holds the session lock.
pub(super) fn halves(session: TlsSession) -> io::Result<(TlsHalf, TlsHalf)> {
    let socket = &session.stream().0;
    let watched = [socket.try_clone()?, socket.try_clone()?];
    let session = Arc::new(Mutex::new(session));
    let [read, write] = watched.map(|watched| TlsHalf {
        session: Arc::clone(&session),
        watched,
    });
    Ok((read, write))
}

impl ReadHalf for TlsHalf {
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

impl WriteHalf for TlsHalf {
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
