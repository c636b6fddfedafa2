//! Test that a killed peer is noticed immediately, over every transport.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use rdzv_rpc::transport::Identity;
use rdzv_rpc::transport::{Listener, TransportKind};
use rdzv_testing::{Process, TestAuthority};

use super::pump::{fill, read_to_end};
use super::world::{KINDS, TEST_LIMIT, accept, options};

#[test]
fn a_killed_peer_is_noticed_at_once() {
    for kind in KINDS {
        let authority = TestAuthority::new();
        let mut options = options(kind);
        let mut command = Command::new(rdzv_testing::program("transport"));
        let (certificate, key) = authority.files("worker");
        if kind == TransportKind::TlsTcp {
            let identity = Identity::from_files(&certificate, &key, &authority.file()).unwrap();
            options.tls = Some(Arc::new(identity));
        }
        let mut listener = Listener::new(Ipv4Addr::LOCALHOST.into(), options).unwrap();
        command.arg(serde_json::to_string(&listener.peer_address().unwrap()).unwrap());
        if kind == TransportKind::TlsTcp {
            command.args([certificate, key, authority.file()]);
        }
        let mut child = Process::start(command.stdout(Stdio::piped()));
        let mut carrier = accept(&mut listener).unwrap();
        let mut greeting = [0; 5];
        fill(&mut *carrier.read, &mut greeting);
        assert_eq!(&greeting, b"hello");
        let line = child.line();
        assert!(
            line.starts_with(&format!("connected by {kind}: ")),
            "{line}"
        );
        child.kill();
        let since = Instant::now();
        // A connection that was reset is over as well.
        let rest = read_to_end(&mut *carrier.read).unwrap_or_default();
        assert_eq!(rest, b"", "{kind}");
        let elapsed = since.elapsed();
        assert!(elapsed < TEST_LIMIT, "{kind}: {elapsed:?}");
    }
}
