//! Two workers in one process, connected over each transport.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::{
    Carrier, Listener, PeerAddress, TransportError, TransportKind, TransportOptions, connect,
};
use rustix::event::PollFlags;

use super::certificates::identity;
use super::pump::wait;
use rdzv_testing::TestAuthority;

/// Longer than any operation takes that succeeds.
pub(crate) const TEST_LIMIT: Duration = Duration::from_secs(20);

pub(crate) const KINDS: [TransportKind; 4] = [
    TransportKind::Tcp,
    TransportKind::TlsTcp,
    TransportKind::Unix,
    TransportKind::Shared,
];

/// Returns options with which two workers of this host use this transport.
/// Each call creates a new authority.
pub(crate) fn options(kind: TransportKind) -> TransportOptions {
    let tls = kind == TransportKind::TlsTcp;
    let near = [TransportKind::Unix, TransportKind::Shared].contains(&kind);
    TransportOptions {
        unix: near,
        shared: kind == TransportKind::Shared,
        tls: tls.then(|| identity(&TestAuthority::new(), "worker")),
        ..TransportOptions::default()
    }
}

/// Returns the next peer of the listener, or the error of a refused peer.
pub(crate) fn accept(listener: &mut Listener) -> Result<Carrier, TransportError> {
    loop {
        if let Some(carrier) = listener.accept()? {
            return Ok(carrier);
        }
        wait(listener.descriptor(), PollFlags::IN);
    }
}

/// Results of the connecting side and of the listening side.
pub(crate) type Met = (
    Result<Carrier, TransportError>,
    Result<Carrier, TransportError>,
);

/// Connects two workers; returns the result of each side.
pub(crate) fn meet(
    listener: &mut Listener,
    peer_address: &PeerAddress,
    connector: &TransportOptions,
) -> Met {
    thread::scope(|scope| {
        let connected =
            scope.spawn(|| connect(peer_address, connector, Instant::now() + TEST_LIMIT));
        let accepted = accept(listener);
        (connected.join().unwrap(), accepted)
    })
}

/// Creates a listener, and returns it with its address.
pub(crate) fn listening(options: TransportOptions) -> (Listener, PeerAddress) {
    let listener = Listener::new(Ipv4Addr::LOCALHOST.into(), options).unwrap();
    let peer_address = listener.peer_address().unwrap();
    (listener, peer_address)
}

/// Connects two workers with these options.
pub(crate) fn between(acceptor: TransportOptions, connector: &TransportOptions) -> Met {
    let (mut listener, peer_address) = listening(acceptor);
    meet(&mut listener, &peer_address, connector)
}

/// Connects two workers; returns the connecting and the listening end.
pub(crate) fn pair(kind: TransportKind) -> (Carrier, Carrier) {
    let options = options(kind);
    let (connected, accepted) = between(options.clone(), &options);
    let (connected, accepted) = (connected.unwrap(), accepted.unwrap());
    assert_eq!((connected.kind, accepted.kind), (kind, kind));
    (connected, accepted)
}
