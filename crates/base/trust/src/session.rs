//! One TLS connection: the handshake, and reading and writing of bytes.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConnection, Connection, Error, ServerConnection,
};

use crate::identity::{Identity, worker_names};

/// Maximum number of bytes of buffer space per read.
/// The limit bounds the work of a read, which first zeroes the space.
const READ_AT_ONCE: usize = 256 << 10;

/// A TLS connection over a stream. If the stream never blocks, no call waits.
pub struct Session<S> {
    tls: Connection,
    stream: S,
    /// Bytes of the caller that are encrypted but not reported as written.
    /// Not all of their encrypted form could be sent.
    owed: usize,
}

impl<S> std::fmt::Debug for Session<S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Session(…)")
    }
}

impl<S: Read + Write> Session<S> {
    /// Creates the side that connects.
    ///
    /// # Errors
    ///
    /// Returns the reason why TLS cannot begin.
    pub fn connector(identity: &Identity, stream: S) -> Result<Self, String> {
        // No name is sent, and none is compared; see `Hosts`.
        let no_name = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let tls = ClientConnection::new(Arc::clone(&identity.client), no_name);
        Ok(Self::new(tls.map_err(|e| explain(&e))?.into(), stream))
    }

    /// Creates the side that listens.
    ///
    /// # Errors
    ///
    /// Returns the reason why TLS cannot begin.
    pub fn acceptor(identity: &Identity, stream: S) -> Result<Self, String> {
        let tls = ServerConnection::new(Arc::clone(&identity.server));
        Ok(Self::new(tls.map_err(|e| explain(&e))?.into(), stream))
    }

    fn new(tls: Connection, stream: S) -> Self {
        let owed = 0;
        Self { tls, stream, owed }
    }

    /// Returns the underlying stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Continues the handshake as far as possible; `true` if it is complete.
    /// Otherwise, the caller must wait until the stream is readable, or writable if
    /// [`Session::wants_room`].
    ///
    /// # Errors
    ///
    /// Returns [`io::ErrorKind::InvalidData`] if one side refuses the other or does not use TLS,
    /// and [`io::ErrorKind::UnexpectedEof`] if the peer closes the connection. Otherwise returns
    /// the errors of the stream.
    pub fn handshake(&mut self) -> io::Result<bool> {
        loop {
            if self.flush()? && !self.tls.is_handshaking() {
                return Ok(true);
            }
            if self.wants_room() {
                return Ok(false);
            }
            match self.pull() {
                Ok(0) => {
                    let what = "it closed the connection during the TLS handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// `true` if encrypted bytes wait until the stream is writable.
    pub fn wants_room(&self) -> bool {
        self.tls.wants_write()
    }

    /// Returns the names in the certificate of the peer.
    pub fn certified(&self) -> Vec<String> {
        let chain = self.tls.peer_certificates();
        chain
            .and_then(<[_]>::first)
            .map(worker_names)
            .unwrap_or_default()
    }

    fn pull(&mut self) -> io::Result<usize> {
        let count = self.tls.read_tls(&mut self.stream)?;
        if let Err(error) = self.tls.process_new_packets() {
            // An alert notifies the peer, if it still reads.
            let _ = self.flush();
            return Err(io::Error::new(io::ErrorKind::InvalidData, explain(&error)));
        }
        Ok(count)
    }

    /// Writes encrypted bytes to the stream; `true` if none are left.
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

    /// Reads decrypted bytes; returns 0 if the peer has closed the connection.
    ///
    /// # Errors
    ///
    /// Returns [`io::ErrorKind::WouldBlock`] if no bytes are available now,
    /// [`io::ErrorKind::InvalidData`] for a violation of TLS or a refused certificate, and
    /// otherwise the errors of the stream.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(into) {
                // A connection may end without a closing alert. The caller's protocol detects
                // missing bytes.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            // Answers of the TLS protocol itself are sent here. If that fails, the peer may have
            // sent the reason before it closed.
            let _ = self.flush();
            self.pull()?;
        }
    }

    /// Appends decrypted bytes to a buffer, within its capacity.
    ///
    /// # Errors
    ///
    /// The same as for [`Session::read`]. The buffer is then unchanged.
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
    /// Returns [`io::ErrorKind::WouldBlock`] if the stream does not accept all encrypted bytes now:
    /// the next call must begin with the same bytes. Otherwise returns the errors of the stream.
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

    /// `true` if the next read returns decrypted bytes or an error of TLS.
    pub fn has_plaintext(&mut self) -> bool {
        let state = self.tls.process_new_packets();
        // The next read returns the error.
        state.map_or(true, |state| state.plaintext_bytes_to_read() > 0)
    }

    /// Sends a closing alert to the peer. The stream stays open.
    pub fn close(&mut self) {
        self.tls.send_close_notify();
        // A peer that no longer reads does not need the alert.
        let _ = self.flush();
    }
}

fn explain(error: &Error) -> String {
    match error {
        Error::AlertReceived(alert) => match alert {
            // `DecryptError` occurs if both authorities have the same name.
            AlertDescription::UnknownCA | AlertDescription::DecryptError => {
                "our certificate is not signed by the authority of the peer's job".to_owned()
            }
            AlertDescription::CertificateRequired => "the peer requires a certificate".to_owned(),
            AlertDescription::CertificateExpired => "our certificate has expired".to_owned(),
            other => format!("the peer ended the TLS handshake: {other:?}"),
        },
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "its certificate is not signed by the authority of this job".to_owned(),
        Error::InvalidCertificate(reason) => format!("its certificate is invalid: {reason}"),
        Error::NoCertificatesPresented => "it has no certificate".to_owned(),
        Error::InvalidMessage(_) => "it does not use TLS".to_owned(),
        other => format!("TLS: {other}"),
    }
}
