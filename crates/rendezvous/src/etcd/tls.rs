//! Certificates for a protected connection to etcd.

use std::fs;
use std::path::Path;

use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use super::options::TlsFiles;
use crate::RendezvousError;

/// Reads the files.
pub(crate) fn config(files: &TlsFiles) -> Result<TlsConfig, RendezvousError> {
    let mut config = TlsConfig::builder();
    if let Some(authority) = &files.authority {
        config = config.root_certs(RootCerts::new_with_certs(&certificates(authority)?));
    }
    if let Some((certificate, key)) = &files.identity {
        let client = ClientCert::new_with_certs(&certificates(certificate)?, private_key(key)?);
        config = config.client_cert(Some(client));
    }
    Ok(config.build())
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, RendezvousError> {
    let pem = read(path)?;
    let found: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(unusable(path, "it holds no PEM certificate"));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKey<'static>, RendezvousError> {
    PrivateKey::from_pem(&read(path)?).map_err(|error| unusable(path, &error.to_string()))
}

fn read(path: &Path) -> Result<Vec<u8>, RendezvousError> {
    fs::read(path).map_err(|error| unusable(path, &error.to_string()))
}

fn unusable(path: &Path, why: &str) -> RendezvousError {
    RendezvousError::Argument(format!(
        "The etcd certificate file {} cannot be used: {why}.",
        path.display()
    ))
}
