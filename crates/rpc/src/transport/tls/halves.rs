//! The two halves of a carrier, over one session.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::session::Session;
use crate::transport::{ReadHalf, WriteHalf};

pub(crate) struct TlsRead {
    session: Arc<Mutex<Session>>,
    watched: OwnedFd,
}

pub(crate) struct TlsWrite {
    session: Arc<Mutex<Session>>,
    watched: OwnedFd,
}

/// The halves of a session whose handshake is over. They share it: neither waits while it has it.
pub(crate) fn halves(session: Session) -> io::Result<(TlsRead, TlsWrite)> {
    let first = session.socket().try_clone()?;
    let second = session.socket().try_clone()?;
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

fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReadHalf for TlsRead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        lock(&self.session).read(into)
    }

    fn prepare_to_sleep(&mut self) -> bool {
        !lock(&self.session).has_plaintext()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }
}

impl WriteHalf for TlsWrite {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        lock(&self.session).write(parts)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    fn close(&mut self) {
        lock(&self.session).close();
    }
}
