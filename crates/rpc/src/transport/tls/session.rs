//! One TLS connection: the handshake, and bytes in and out of it without waiting.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConnection, Connection, Error, ServerConnection,
};

use super::identity::{Identity, worker_names};
use crate::transport::socket::{close, receive, send};

/// A TLS connection over a socket that never blocks.
pub(crate) struct Session {
    tls: Connection,
    socket: OwnedFd,
    /// Bytes of the caller that were encrypted already and that it does not know of, because not
    /// all of that could be sent.
    owed: usize,
}

/// A socket, for rustls.
struct Wire<'a>(&'a OwnedFd);

impl io::Read for Wire<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        receive(self.0, into)
    }
}

impl io::Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send(self.0, &[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        send(self.0, parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Session {
    pub(crate) fn connector(identity: &Identity, socket: OwnedFd) -> Result<Self, String> {
        // No name is sent, and none is compared: see `Hosts`.
        let nobody = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let tls = ClientConnection::new(Arc::clone(&identity.client), nobody);
        Ok(Self::new(tls.map_err(|e| explain(&e))?.into(), socket))
    }

    pub(crate) fn acceptor(identity: &Identity, socket: OwnedFd) -> Result<Self, String> {
        let tls = ServerConnection::new(Arc::clone(&identity.server));
        Ok(Self::new(tls.map_err(|e| explain(&e))?.into(), socket))
    }

    fn new(tls: Connection, socket: OwnedFd) -> Self {
        let owed = 0;
        Self { tls, socket, owed }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Goes on with the handshake as far as it goes without waiting. True: it is over. If not, then
    /// the next thing to wait for is input, or room if [`Session::wants_room`].
    pub(crate) fn shake_hands(&mut self) -> Result<bool, String> {
        loop {
            if self.flush().map_err(|e| e.to_string())? && !self.tls.is_handshaking() {
                return Ok(true);
            }
            if self.wants_room() {
                return Ok(false);
            }
            match self.pull() {
                Ok(0) => return Err("it closed during the TLS handshake".to_owned()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    pub(crate) fn wants_room(&self) -> bool {
        self.tls.wants_write()
    }

    /// Tells the peer that its certificate is taken; tells whether it was told.
    pub(crate) fn welcome(&mut self, word: u8) -> io::Result<bool> {
        match self.write(&[IoSlice::new(&[word])]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The names in the certificate of the peer.
    pub(crate) fn certified(&self) -> Vec<String> {
        let chain = self.tls.peer_certificates();
        chain
            .and_then(<[_]>::first)
            .map(worker_names)
            .unwrap_or_default()
    }

    /// Takes what the socket has, and looks at it.
    fn pull(&mut self) -> io::Result<usize> {
        let count = self.tls.read_tls(&mut Wire(&self.socket))?;
        if let Err(error) = self.tls.process_new_packets() {
            // An alert tells the peer. Whether it still listens is its own business.
            let _ = self.flush();
            return Err(io::Error::new(io::ErrorKind::InvalidData, explain(&error)));
        }
        Ok(count)
    }

    /// Sends what is encrypted; tells whether that was all.
    fn flush(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Wire(&self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(into) {
                // Without a last word, too, a connection is over: frames tell when one is cut.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            // What the protocol itself has to answer goes out here. If it cannot, the peer may have said
            // why before it closed.
            let _ = self.flush();
            self.pull()?;
        }
    }

    pub(crate) fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.owed == 0 {
            self.owed = self.tls.writer().write_vectored(parts)?;
            if !self.flush()? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        Ok(std::mem::take(&mut self.owed))
    }

    /// Whether bytes were received and decrypted already.
    pub(super) fn has_plaintext(&mut self) -> bool {
        let state = self.tls.process_new_packets();
        // An error is for the next read.
        state.map_or(true, |state| state.plaintext_bytes_to_read() > 0)
    }

    pub(super) fn close(&mut self) {
        self.tls.send_close_notify();
        // As far as it goes: who does not read any more does not need to be told.
        let _ = self.flush();
        close(&self.socket);
    }
}

/// Why a TLS connection failed, in the words of this project.
fn explain(error: &Error) -> String {
    match error {
        Error::AlertReceived(alert) => match alert {
            // The latter if both authorities have one name.
            AlertDescription::UnknownCA | AlertDescription::DecryptError => {
                "the authority of the peer's job has not signed our certificate".to_owned()
            }
            AlertDescription::CertificateRequired => "the peer wants a certificate".to_owned(),
            AlertDescription::CertificateExpired => "our certificate has expired".to_owned(),
            other => format!("the peer ended the TLS handshake: {other:?}"),
        },
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "the authority of this job has not signed its certificate".to_owned(),
        Error::InvalidCertificate(reason) => format!("its certificate is no good: {reason}"),
        Error::NoCertificatesPresented => "it has no certificate".to_owned(),
        Error::InvalidMessage(_) => "it does not speak TLS".to_owned(),
        other => format!("TLS: {other}"),
    }
}
