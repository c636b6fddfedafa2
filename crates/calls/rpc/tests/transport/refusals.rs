//! Tests of refused peers, and of the reasons that they receive.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::Identity;
use rdzv_rpc::transport::{Listener, TransportError, TransportKind, TransportOptions, connect};
use rdzv_rpc_proto::frame::decoder::FromHeap;
use rdzv_rpc_proto::frame::{Decoder, FrameKind, FrameLimits, Header, encode, refusal};

use super::certificates::identity;
use super::pump::{read, write_all};
use super::world::{TEST_LIMIT, accept, between, listening, meet, options};
use rdzv_testing::TestAuthority;

/// Returns the reason in the last frame that a peer received.
fn said(bytes: &[u8]) -> String {
    let mut decoder = Decoder::new(FrameLimits::UNAUTHENTICATED, FromHeap);
    decoder.room()[..bytes.len()].copy_from_slice(bytes);
    decoder.filled(bytes.len());
    let frame = decoder.next().unwrap().expect("a whole frame");
    assert_eq!(frame.header.kind, FrameKind::GoAway);
    refusal::reason(&frame.body)
}

fn unix_stream(listener: &Listener) -> UnixStream {
    let name = listener.peer_address().unwrap().unix.unwrap();
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    stream.set_read_timeout(Some(TEST_LIMIT)).unwrap();
    stream
}

fn tcp_stream(listener: &Listener) -> TcpStream {
    let stream = TcpStream::connect(listener.peer_address().unwrap().address).unwrap();
    stream.set_read_timeout(Some(TEST_LIMIT)).unwrap();
    stream
}

#[test]
fn a_foreign_user_is_refused_on_both_sides_and_notified_why() {
    let ours = rustix::process::geteuid().as_raw();
    // The options allow only another user, so the user of this process is the foreign one.
    let foreign = TransportOptions {
        users: Some(vec![ours + 1]),
        ..TransportOptions::default()
    };
    let (connected, accepted) = between(foreign.clone(), &TransportOptions::default());
    let reason = format!(
        "user {ours} is not allowed to connect to a worker of user {ours}: run all workers on a \
         host as one user; in Rust, the options can allow more users"
    );
    match connected.unwrap_err() {
        TransportError::RefusedBy { reason: said, .. } => assert_eq!(said, reason),
        other => panic!("{other:?}"),
    }
    let text = accepted.unwrap_err().to_string();
    let process = std::process::id();
    let expected = format!("refused process {process} of user {ours} on this host: {reason}");
    assert_eq!(text, expected);
    // The connecting side also checks the listener, so a name that another user took is useless to
    // that user.
    let (_listener, peer_address) = listening(TransportOptions::default());
    let error = connect(&peer_address, &foreign, Instant::now() + TEST_LIMIT).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn who_talks_nonsense_on_the_unix_socket_is_notified() {
    let mut listener =
        Listener::new(Ipv4Addr::LOCALHOST.into(), TransportOptions::default()).unwrap();
    let mut stream = unix_stream(&listener);
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let text = accept(&mut listener).unwrap_err().to_string();
    assert!(
        text.contains("it does not begin with the expected bytes"),
        "{text}"
    );
    let mut bytes = Vec::new();
    // The socket was closed with unread bytes, which may cause an error after the reason.
    let _ = stream.read_to_end(&mut bytes);
    assert!(said(&bytes).contains("it does not begin with the expected bytes"));
    // Other peers are not affected.
    let peer_address = listener.peer_address().unwrap();
    let (connected, accepted) = meet(&mut listener, &peer_address, &TransportOptions::default());
    assert!(connected.is_ok() && accepted.is_ok());
}

#[test]
fn who_says_nothing_is_dropped_in_time_and_delays_nobody() {
    for kind in [TransportKind::TlsTcp, TransportKind::Shared] {
        let greeting = Duration::from_millis(300);
        let options = TransportOptions {
            greeting,
            ..options(kind)
        };
        let (mut listener, peer_address) = listening(options.clone());
        let since = Instant::now();
        let silent: Box<dyn std::any::Any> = match kind {
            TransportKind::TlsTcp => Box::new(tcp_stream(&listener)),
            _ => Box::new(unix_stream(&listener)),
        };
        let (connected, accepted) = meet(&mut listener, &peer_address, &options);
        assert!(connected.is_ok() && accepted.is_ok(), "{kind}");
        let text = accept(&mut listener).unwrap_err().to_string();
        assert!(
            text.ends_with("it did not identify itself within 300ms"),
            "{text}"
        );
        assert!(since.elapsed() >= greeting);
        drop(silent);
    }
}

#[test]
fn a_flood_of_silent_peers_keeps_nobody_away() {
    let options = TransportOptions::default();
    let (mut listener, peer_address) = listening(options.clone());
    let mut silent = Vec::new();
    let mut pushed_out = 0;
    for _ in 0..200 {
        silent.push(unix_stream(&listener));
        match listener.accept() {
            Ok(None) => {}
            Ok(Some(carrier)) => panic!("{carrier:?} has said nothing"),
            Err(error) => {
                assert!(
                    error
                        .to_string()
                        .contains("it did not identify itself, like 63 other peers"),
                    "{error}"
                );
                pushed_out += 1;
            }
        }
    }
    // All these peers belong to one process.
    assert_eq!(pushed_out, 200 - 64);
    let welcome = std::thread::scope(|scope| {
        let connecting =
            scope.spawn(|| connect(&peer_address, &options, Instant::now() + TEST_LIMIT));
        let accepted = loop {
            if let Ok(carrier) = accept(&mut listener) {
                break carrier;
            }
        };
        (connecting.join().unwrap(), accepted)
    });
    assert_eq!(welcome.0.unwrap().kind, TransportKind::Shared);
}

#[test]
fn a_certificate_of_another_authority_is_refused_on_each_side() {
    let foreign = TransportOptions {
        tls: Some(identity(&TestAuthority::new(), "worker")),
        ..options(TransportKind::TlsTcp)
    };
    // The listener has the foreign certificate, and the connecting side sees it first.
    let (connected, accepted) = between(foreign, &options(TransportKind::TlsTcp));
    let (connected, accepted) = (connected.unwrap_err(), accepted.unwrap_err());
    let reason = "its certificate is not signed by the authority of this job";
    assert!(connected.to_string().ends_with(reason), "{connected}");
    let reason = "our certificate is not signed by the authority of the peer's job";
    assert!(accepted.to_string().ends_with(reason), "{accepted}");
}

#[test]
fn a_certificate_that_only_the_listener_refuses_is_notified_to_its_owner() {
    // The connector trusts the authority of the job, and shows a certificate of another one.
    let (job, other) = (TestAuthority::new(), TestAuthority::new());
    let (certificate, key) = other.files("worker");
    let unauthenticated = Identity::from_files(&certificate, &key, &job.file()).unwrap();
    let unauthenticated = TransportOptions {
        tls: Some(Arc::new(unauthenticated)),
        ..options(TransportKind::Tcp)
    };
    let ours = TransportOptions {
        tls: Some(identity(&job, "worker")),
        ..options(TransportKind::Tcp)
    };
    let (connected, accepted) = between(ours, &unauthenticated);
    let (connected, accepted) = (connected.unwrap_err(), accepted.unwrap_err());
    let text = accepted.to_string();
    assert!(
        text.ends_with("its certificate is not signed by the authority of this job"),
        "{text}"
    );
    match connected {
        TransportError::RefusedBy { reason, .. } => {
            assert_eq!(
                reason,
                "our certificate is not signed by the authority of the peer's job"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_name_in_the_certificate_is_the_only_one_a_peer_may_have() {
    let job = TestAuthority::new();
    let with = |name: &str| TransportOptions {
        tls: Some(identity(&job, name)),
        ..options(TransportKind::Tcp)
    };
    // A name that no host can have is a URI in the certificate.
    let (connected, accepted) = between(with("group:worker_0"), &with("trainer-1"));
    let (connected, accepted) = (connected.unwrap(), accepted.unwrap());
    assert_eq!(connected.kind, TransportKind::TlsTcp);
    connected.check_name("group:worker_0").unwrap();
    accepted.check_name("trainer-1").unwrap();
    let error = accepted.check_name("trainer-2").unwrap_err().to_string();
    assert!(
        error.ends_with("it claims to be trainer-2, but its certificate is for trainer-1"),
        "{error}"
    );
}

#[test]
fn with_tls_on_one_side_only_both_are_notified() {
    let (secure, plain) = (options(TransportKind::TlsTcp), options(TransportKind::Tcp));
    // Refused because of the published address.
    for (listens, connects, reason) in [
        (
            &secure,
            &plain,
            "it requires TLS, but this worker has no certificates",
        ),
        (
            &plain,
            &secure,
            "it does not use TLS, but this worker requires TLS",
        ),
    ] {
        let (_listener, peer_address) = listening(listens.clone());
        let error = connect(&peer_address, connects, Instant::now() + TEST_LIMIT).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    // Refused because of the first bytes, if the published address is out of date: a frame where
    // TLS is required.
    let (mut listener, mut peer_address) = listening(secure.clone());
    peer_address.tls = false;
    let mut carrier = connect(&peer_address, &plain, Instant::now() + TEST_LIMIT).unwrap();
    let mut hello = Vec::new();
    encode(&Header::new(FrameKind::Hello), b"hello", &[], &mut hello);
    write_all(&mut *carrier.write, &hello).unwrap();
    let text = accept(&mut listener).unwrap_err().to_string();
    assert!(text.ends_with("it does not use TLS"), "{text}");
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    // The socket was closed with unread bytes, which may cause an error after the reason.
    while let Ok(count @ 1..) = read(&mut *carrier.read, &mut piece) {
        bytes.extend_from_slice(&piece[..count]);
    }
    assert_eq!(
        said(&bytes),
        "this worker requires TLS: give certificates to all workers or to none"
    );
    // TLS where a frame is required: the answer of a listener without TLS is not TLS.
    let (mut listener, mut peer_address) = listening(plain);
    peer_address.tls = true;
    std::thread::scope(|scope| {
        let connecting =
            scope.spawn(|| connect(&peer_address, &secure, Instant::now() + TEST_LIMIT));
        let mut carrier = accept(&mut listener).unwrap();
        write_all(&mut *carrier.write, &refusal::go_away("not an rdzv frame")).unwrap();
        let error = connecting.join().unwrap().unwrap_err().to_string();
        assert!(error.ends_with("it does not use TLS"), "{error}");
    });
}

#[test]
fn a_silent_listener_is_given_up_at_the_deadline() {
    for kind in [TransportKind::TlsTcp, TransportKind::Shared] {
        let options = options(kind);
        // The kernel accepts connections, but no code accepts them from the queue.
        let (_listener, peer_address) = listening(options.clone());
        let since = Instant::now();
        let deadline = since + Duration::from_millis(200);
        let error = connect(&peer_address, &options, deadline).unwrap_err();
        assert!(matches!(error, TransportError::Late { .. }), "{error:?}");
        let elapsed = since.elapsed();
        assert!(elapsed >= Duration::from_millis(200) && elapsed < Duration::from_secs(5));
        assert!(
            error
                .to_string()
                .contains(&peer_address.address.to_string()),
            "{error}"
        );
    }
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let (job, other) = (TestAuthority::new(), TestAuthority::new());
    let (certificate, key) = job.files("worker");
    let (_, foreign_key) = other.files("worker");
    let missing = job.file().with_file_name("missing.pem");
    for (files, named) in [
        ([&missing, &key, &job.file()], &missing),
        ([&key, &key, &job.file()], &key),
        ([&certificate, &certificate, &job.file()], &certificate),
        ([&certificate, &foreign_key, &job.file()], &foreign_key),
        ([&certificate, &key, &missing], &missing),
    ] {
        let error = Identity::from_files(files[0], files[1], files[2]).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&named.display().to_string()), "{text}");
    }
}
