//! Two workers in one process, connected in each of the ways.

use std::thread;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::{
    Carrier, Listener, PeerAddress, TransportError, TransportKind, TransportOptions, connect,
};
use rustix::event::PollFlags;

use super::certificates::identity;
use super::pump::wait;
use rdzv_testing::Authority;

/// Longer than anything takes that works.
pub(crate) const TEST_LIMIT: Duration = Duration::from_secs(20);

pub(crate) const KINDS: [TransportKind; 4] = [
    TransportKind::Tcp,
    TransportKind::TlsTcp,
    TransportKind::Unix,
    TransportKind::Shared,
];

/// Options under which two workers of this host use this kind. Each call has an authority of its own.
pub(crate) fn options(kind: TransportKind) -> TransportOptions {
    let tls = kind == TransportKind::TlsTcp;
    let near = [TransportKind::Unix, TransportKind::Shared].contains(&kind);
    TransportOptions {
        unix: near,
        shared: kind == TransportKind::Shared,
        tls: tls.then(|| identity(&Authority::new(), "worker")),
        ..TransportOptions::default()
    }
}

/// The next peer that the listener has, or why it refused one.
pub(crate) fn accept(listener: &mut Listener) -> Result<Carrier, TransportError> {
    loop {
        if let Some(carrier) = listener.accept()? {
            return Ok(carrier);
        }
        wait(listener.descriptor(), PollFlags::IN);
    }
}

/// Both ends of a connection, or why each has none.
pub(crate) fn meet(
    listener: &mut Listener,
    peer_address: &PeerAddress,
    connector: &TransportOptions,
) -> (
    Result<Carrier, TransportError>,
    Result<Carrier, TransportError>,
) {
    thread::scope(|scope| {
        let connected =
            scope.spawn(|| connect(peer_address, connector, Instant::now() + TEST_LIMIT));
        let accepted = accept(listener);
        (connected.join().unwrap(), accepted)
    })
}

/// Who connected and who listened.
pub(crate) fn pair(kind: TransportKind) -> (Carrier, Carrier) {
    let options = options(kind);
    let mut listener = Listener::new(options.clone()).unwrap();
    let peer_address = listener.peer_address().unwrap();
    let (connected, accepted) = meet(&mut listener, &peer_address, &options);
    let (connected, accepted) = (connected.unwrap(), accepted.unwrap());
    assert_eq!((connected.kind, accepted.kind), (kind, kind));
    (connected, accepted)
}
