//! Tests with a TLS peer that does not belong to the job, or hangs up.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rdzv_testing::TestAuthority;
use rdzv_trust::channel::OpenError;
use rdzv_trust::{Channel, Credentials, Identity, Session};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

#[test]
fn a_client_without_a_certificate_is_refused_with_the_reason() {
    let authority = TestAuthority::new();
    let (certificate, key) = authority.files("node");
    let identity = Identity::from_files(&certificate, &key, &authority.file()).unwrap();
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(authority.file()).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = thread::spawn(move || {
        let name = ServerName::try_from("node").unwrap();
        let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        // The client writes until the server has refused it.
        while tls.complete_io(&mut stream).is_ok() && tls.writer().write(b"x").is_ok() {}
    });
    let stream = listener.accept().unwrap().0;
    let mut session = Session::acceptor(&identity, stream).unwrap();
    let refused = session.handshake().unwrap_err();
    assert_eq!(refused.to_string(), "it has no certificate");
    drop(session);
    client.join().unwrap();
}

#[test]
fn a_peer_that_hangs_up_during_the_handshake_refuses_nothing() {
    let authority = TestAuthority::new();
    let (certificate, key) = authority.files("node");
    let identity = Identity::from_files(&certificate, &key, &authority.file()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    drop(listener.accept().unwrap());
    let credentials = Credentials {
        identity: Some(identity.into()),
        ..Credentials::default()
    };
    let error = Channel::open(stream, &credentials, Duration::from_secs(60)).unwrap_err();
    assert!(matches!(error, OpenError::Silent(_)), "{error}");
}
