//! One TLS connection: the handshake, and bytes in and out of it without waiting.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConnection, Connection, Error, ServerConnection,
};

use crate::identity::{Identity, worker_names};

/// The most bytes that are made room for at a time: they are cleared first.
const READ_AT_ONCE: usize = 256 << 10;

/// A TLS connection over a stream that never blocks.
pub struct Session<S> {
    tls: Connection,
    stream: S,
    /// Bytes of the caller that are encrypted already but were not reported as written, because
    /// not all of the encrypted form could be sent.
    owed: usize,
}

impl<S> std::fmt::Debug for Session<S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Session(…)")
    }
}

impl<S: Read + Write> Session<S> {
    /// The side that connects.
    ///
    /// # Errors
    ///
    /// The reason why TLS cannot begin.
    pub fn connector(identity: &Identity, stream: S) -> Result<Self, String> {
        // No name is sent, and none is compared: see `Hosts`.
        let nobody = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let tls = ClientConnection::new(Arc::clone(&identity.client), nobody);
        Ok(Self::new(tls.map_err(|e| explain(&e))?.into(), stream))
    }

    /// The side that listens.
    ///
    /// # Errors
    ///
    /// The reason why TLS cannot begin.
    pub fn acceptor(identity: &Identity, stream: S) -> Result<Self, String> {
        let tls = ServerConnection::new(Arc::clone(&identity.server));
        Ok(Self::new(tls.map_err(|e| explain(&e))?.into(), stream))
    }

    fn new(tls: Connection, stream: S) -> Self {
        let owed = 0;
        Self { tls, stream, owed }
    }

    /// The stream below.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Continues the handshake without waiting. True: it is complete. If not, the caller waits for
    /// input, or for room to write if [`Session::wants_room`].
    ///
    /// # Errors
    ///
    /// The reason why the handshake failed.
    pub fn handshake(&mut self) -> Result<bool, String> {
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

    /// Whether encrypted bytes wait until the stream can be written.
    pub fn wants_room(&self) -> bool {
        self.tls.wants_write()
    }

    /// The names in the certificate of the peer.
    pub fn certified(&self) -> Vec<String> {
        let chain = self.tls.peer_certificates();
        chain
            .and_then(<[_]>::first)
            .map(worker_names)
            .unwrap_or_default()
    }

    /// Reads from the stream and decrypts.
    fn pull(&mut self) -> io::Result<usize> {
        let count = self.tls.read_tls(&mut self.stream)?;
        if let Err(error) = self.tls.process_new_packets() {
            // An alert tells the peer. Whether it still listens is its own business.
            let _ = self.flush();
            return Err(io::Error::new(io::ErrorKind::InvalidData, explain(&error)));
        }
        Ok(count)
    }

    /// Writes the encrypted bytes to the stream. True: all of them.
    fn flush(&mut self) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads decrypted bytes.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if there is nothing now, [`io::ErrorKind::InvalidData`] for a
    /// breach of TLS or a certificate that is refused; otherwise those of the stream.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(into) {
                // Without a last word, too, a connection is over: frames tell when one is cut.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            // What the protocol itself has to answer goes out here. If it cannot, the peer may have
            // said why before it closed.
            let _ = self.flush();
            self.pull()?;
        }
    }

    /// Reads decrypted bytes to the end of a buffer, within its capacity, some at a time.
    ///
    /// # Errors
    ///
    /// As for [`Session::read`]. The buffer is as it was then.
    pub fn read_to(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let length = buffer.len();
        buffer.resize(buffer.capacity().min(length + READ_AT_ONCE), 0);
        let read = self.read(&mut buffer[length..]);
        buffer.truncate(length + read.as_ref().map_or(0, |count| *count));
        read
    }

    /// Encrypts and sends the beginning of the parts; returns the number of bytes.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if the stream takes nothing now: the next call has to begin with
    /// the same bytes. Otherwise those of the stream.
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
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
    pub fn has_plaintext(&mut self) -> bool {
        let state = self.tls.process_new_packets();
        // An error is for the next read.
        state.map_or(true, |state| state.plaintext_bytes_to_read() > 0)
    }

    /// Announces the end to the peer. The stream stays open.
    pub fn close(&mut self) {
        self.tls.send_close_notify();
        // A peer that no longer reads does not need it.
        let _ = self.flush();
    }
}

/// The text for a TLS error.
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
