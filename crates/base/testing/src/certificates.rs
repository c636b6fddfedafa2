//! Certificates for tests of TLS.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType, date_time_ymd};
use tempfile::TempDir;

/// A certificate authority that writes its certificates to a temporary folder.
pub struct TestAuthority {
    folder: TempDir,
    certificates: AtomicU32,
    issuer: Issuer<'static, KeyPair>,
}

impl Default for TestAuthority {
    fn default() -> Self {
        Self::new()
    }
}

impl TestAuthority {
    /// Creates an authority with a new key.
    pub fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        fs::write(folder.path().join("authority.pem"), certificate.pem()).unwrap();
        Self {
            folder,
            certificates: AtomicU32::new(0),
            issuer,
        }
    }

    /// Returns the path of the authority's own certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// Signs a certificate for a worker.
    /// Returns the paths of the certificate and of its key.
    ///
    /// A name with a colon cannot be a DNS name, so the certificate contains it as a URI.
    pub fn files(&self, name: &str) -> (PathBuf, PathBuf) {
        self.sign(name, CertificateParams::new(Vec::<String>::new()).unwrap())
    }

    /// Signs an expired certificate, otherwise like [`TestAuthority::files`].
    pub fn expired_files(&self, name: &str) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign(name, params)
    }

    fn sign(&self, name: &str, mut params: CertificateParams) -> (PathBuf, PathBuf) {
        params.subject_alt_names.push(if name.contains(':') {
            SanType::URI(format!("rdzv:{name}").try_into().unwrap())
        } else {
            SanType::DnsName(name.try_into().unwrap())
        });
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let number = self.certificates.fetch_add(1, Ordering::Relaxed);
        let file = |ending: &str| self.folder.path().join(format!("{number}.{ending}"));
        let files = (file("pem"), file("key"));
        fs::write(&files.0, certificate.pem()).unwrap();
        fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }
}
