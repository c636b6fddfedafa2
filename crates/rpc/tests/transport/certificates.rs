//! An authority, and certificates that it signs, in files of their own.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rdzv_rpc::transport::Identity;
use tempfile::TempDir;

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("authority.pem"), certificate.pem()).unwrap();
        let issuer = Issuer::new(params, key);
        Self { issuer, folder }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// Files with a certificate for this worker, and its key.
    pub(crate) fn files(&self, name: &str) -> (PathBuf, PathBuf) {
        let folder = self.folder.path().join(uuid::Uuid::new_v4().to_string());
        fs::create_dir(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        let name = match name.contains(':') {
            true => SanType::URI(format!("rdzv:{name}").try_into().unwrap()),
            false => SanType::DnsName(name.try_into().unwrap()),
        };
        params.subject_alt_names.push(name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = (folder.join("worker.pem"), folder.join("worker.key"));
        fs::write(&files.0, certificate.pem()).unwrap();
        fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }

    pub(crate) fn identity(&self, name: &str) -> Arc<Identity> {
        let (certificate, key) = self.files(name);
        Arc::new(Identity::from_files(&certificate, &key, &self.file()).unwrap())
    }
}
