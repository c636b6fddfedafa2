//! A peer that is killed is noticed at once, whatever carries its bytes.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::Identity;
use rdzv_rpc::transport::{Listener, TransportKind};

use super::certificates::Authority;
use super::pump::{fill, read_to_end};
use super::world::{KINDS, accept, options};

/// Is not left behind by a test that fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may be over already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The example that connects, which is built beside the tests.
fn program() -> Command {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(|deps| deps.parent()).unwrap();
    let program = target.join("examples/transport");
    assert!(
        program.exists(),
        "cargo builds examples with the tests: {program:?}"
    );
    Command::new(program)
}

#[test]
fn a_killed_peer_is_noticed_at_once() {
    for kind in KINDS {
        let authority = Authority::new();
        let mut options = options(kind);
        let mut command = program();
        let (certificate, key) = authority.files("worker");
        if kind == TransportKind::TlsTcp {
            let identity = Identity::from_files(&certificate, &key, &authority.file()).unwrap();
            options.tls = Some(Arc::new(identity));
        }
        let mut listener = Listener::new(options).unwrap();
        command.arg(serde_json::to_string(&listener.contact().unwrap()).unwrap());
        if kind == TransportKind::TlsTcp {
            command.args([certificate, key, authority.file()]);
        }
        let mut child = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut carrier = accept(&mut listener).unwrap();
        let mut greeting = [0; 5];
        fill(&mut *carrier.read, &mut greeting);
        assert_eq!(&greeting, b"hello");
        let mut line = String::new();
        let mut output = BufReader::new(child.0.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert!(
            line.starts_with(&format!("connected by {kind}: ")),
            "{line}"
        );
        child.0.kill().unwrap();
        let since = Instant::now();
        // A connection that was reset is over as well.
        let rest = read_to_end(&mut *carrier.read).unwrap_or_default();
        assert_eq!(rest, b"", "{kind}");
        let elapsed = since.elapsed();
        assert!(elapsed < Duration::from_secs(1), "{kind}: {elapsed:?}");
    }
}
