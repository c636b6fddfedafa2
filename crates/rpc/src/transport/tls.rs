//! TLS 1.3 over TCP, with certificates on both sides. The only file that knows rustls.
//!
//! Both sides show a certificate that the authority of the job has signed. Which worker it is for
//! stands in its subject alternative name, as `DNS:NAME`, or as `URI:rdzv:NAME` for names that no host
//! can have. Addresses are not compared: workers move, and have names of their own. So the name is
//! looked at when the peer has said who it is, see [`super::Carrier::check_name`].

use std::fmt;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection,
    DigitallySignedStruct, Error, RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};

use super::error::TransportError;
use super::socket::{close, receive, send};
use super::{ReadHalf, WriteHalf};

/// What a certificate may call a worker whose name is none of a host.
const URI: &str = "rdzv:";

/// What this worker shows to its peers, and whom it believes.
pub struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Identity(…)")
    }
}

impl Identity {
    /// Reads PEM files: the certificate of this worker (with those between it and the authority, if
    /// there are any), its private key, and the certificate of the authority that signs those of
    /// all workers.
    ///
    /// # Errors
    ///
    /// [`TransportError::Options`] if a file cannot be read, holds something else, or the key is not
    /// that of the certificate.
    pub fn from_files(
        certificate: &Path,
        key: &Path,
        authority: &Path,
    ) -> Result<Self, TransportError> {
        let chain = certificates(certificate)?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|e| unusable(key, e))?;
        let mut roots = RootCertStore::empty();
        for root in certificates(authority)? {
            roots.add(root).map_err(|e| unusable(authority, e))?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(ring::default_provider());
        let visitors =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let visitors = visitors.build().map_err(|e| unusable(authority, e))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| unusable(certificate, e))?
            .with_client_cert_verifier(visitors)
            .with_single_cert(chain.clone(), private.clone_key())
            .map_err(|e| unusable(key, e))?;
        let hosts = Arc::new(Hosts {
            roots,
            provider: Arc::clone(&provider),
        });
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| unusable(certificate, e))?
            .dangerous()
            .with_custom_certificate_verifier(hosts)
            .with_client_auth_cert(chain, private)
            .map_err(|e| unusable(key, e))?;
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TransportError> {
    let all = CertificateDer::pem_file_iter(file).map_err(|e| unusable(file, e))?;
    let all: Result<Vec<_>, _> = all.collect();
    let all = all.map_err(|e| unusable(file, e))?;
    if all.is_empty() {
        return Err(unusable(file, "there is no certificate in it"));
    }
    Ok(all)
}

fn unusable(file: &Path, reason: impl fmt::Display) -> TransportError {
    TransportError::Options {
        file: file.display().to_string(),
        reason: reason.to_string(),
    }
}

/// Believes who listens if the authority of the job signed its certificate, whatever its address.
#[derive(Debug)]
struct Hosts {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Hosts {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The worker names that a certificate is for.
fn worker_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let hosts = parsed.valid_dns_names().map(str::to_owned);
    let uris = parsed.valid_uri_names();
    let uris = uris.filter_map(|uri| uri.strip_prefix(URI).map(str::to_owned));
    hosts.chain(uris).collect()
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

/// A TLS connection over a socket that never blocks.
pub(super) struct Session {
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
    pub(super) fn connector(identity: &Identity, socket: OwnedFd) -> Result<Self, String> {
        // No name is sent, and none is compared: see `Hosts`.
        let nobody = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let tls = ClientConnection::new(Arc::clone(&identity.client), nobody);
        Ok(Self::new(tls.map_err(|e| explain(&e))?.into(), socket))
    }

    pub(super) fn acceptor(identity: &Identity, socket: OwnedFd) -> Result<Self, String> {
        let tls = ServerConnection::new(Arc::clone(&identity.server));
        Ok(Self::new(tls.map_err(|e| explain(&e))?.into(), socket))
    }

    fn new(tls: Connection, socket: OwnedFd) -> Self {
        let owed = 0;
        Self { tls, socket, owed }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Goes on with the handshake as far as it goes without waiting. True: it is over. If not, then
    /// the next thing to wait for is input, or room if [`Session::wants_room`].
    pub(super) fn shake_hands(&mut self) -> Result<bool, String> {
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

    pub(super) fn wants_room(&self) -> bool {
        self.tls.wants_write()
    }

    /// Tells the peer that its certificate is taken; tells whether it was told.
    pub(super) fn welcome(&mut self, word: u8) -> io::Result<bool> {
        match self.write(&[IoSlice::new(&[word])]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The names in the certificate of the peer.
    pub(super) fn certified(&self) -> Vec<String> {
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

    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
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

    pub(super) fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
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
    fn has_plaintext(&mut self) -> bool {
        let state = self.tls.process_new_packets();
        // An error is for the next read.
        state.map_or(true, |state| state.plaintext_bytes_to_read() > 0)
    }

    fn close(&mut self) {
        self.tls.send_close_notify();
        // As far as it goes: who does not read any more does not need to be told.
        let _ = self.flush();
        close(&self.socket);
    }
}

pub(super) struct TlsRead {
    session: Arc<Mutex<Session>>,
    watched: OwnedFd,
}

pub(super) struct TlsWrite {
    session: Arc<Mutex<Session>>,
    watched: OwnedFd,
}

/// The halves of a session whose handshake is over. They share it: neither waits while it has it.
pub(super) fn halves(session: Session) -> io::Result<(TlsRead, TlsWrite)> {
    let first = session.socket.try_clone()?;
    let second = session.socket.try_clone()?;
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
