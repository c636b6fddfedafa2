//! The identity of a process in TLS.
//!
//! An identity consists of a certificate, a key, and the authority whose certificates the process
//! accepts.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
};

/// Scheme of the names of workers that cannot be host names.
const URI: &str = "rdzv:";

/// Certificate of this process, and the authority that the process trusts.
pub struct Identity {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

/// A PEM file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct IdentityError {
    /// Path of the file.
    pub file: String,
    /// Reason why the file cannot be used.
    pub reason: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Identity(…)")
    }
}

impl Identity {
    /// Reads PEM files.
    ///
    /// The files are the certificate of this process, its private key, and the certificate of the
    /// authority that signs all certificates of the job. The first file may also contain
    /// intermediate certificates.
    ///
    /// # Errors
    ///
    /// Returns [`IdentityError`] if a file cannot be read or has other content, or if the key does
    /// not belong to the certificate.
    pub fn from_files(
        certificate: &Path,
        key: &Path,
        authority: &Path,
    ) -> Result<Self, IdentityError> {
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

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let all = CertificateDer::pem_file_iter(file).map_err(|e| unusable(file, e))?;
    let all: Result<Vec<_>, _> = all.collect();
    let all = all.map_err(|e| unusable(file, e))?;
    if all.is_empty() {
        return Err(unusable(file, "it contains no certificate"));
    }
    Ok(all)
}

fn unusable(file: &Path, reason: impl fmt::Display) -> IdentityError {
    IdentityError {
        file: file.display().to_string(),
        reason: reason.to_string(),
    }
}

/// Accepts any server with a valid certificate of the job's authority.
/// The server's address does not matter.
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
        Err(Error::General("only TLS 1.3 is supported".to_owned()))
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

pub(crate) fn worker_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let hosts = parsed.valid_dns_names().map(str::to_owned);
    let uris = parsed.valid_uri_names();
    let uris = uris.filter_map(|uri| uri.strip_prefix(URI).map(str::to_owned));
    hosts.chain(uris).collect()
}
