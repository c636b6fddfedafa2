//! Two workers in one process, connected in each of the ways.

use std::thread;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::{
    Carrier, Contact, Listener, TransportError, TransportKind, TransportOptions, connect,
};
use rustix::event::PollFlags;

use super::certificates::identity;
use super::pump::wait;
use rdzv_testing::Authority;

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

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
    contact: &Contact,
    connector: &TransportOptions,
) -> (
    Result<Carrier, TransportError>,
    Result<Carrier, TransportError>,
) {
    thread::scope(|scope| {
        let connected = scope.spawn(|| connect(contact, connector, Instant::now() + PATIENCE));
        let accepted = accept(listener);
        (connected.join().unwrap(), accepted)
    })
}

/// Who connected and who listened.
pub(crate) fn pair(kind: TransportKind) -> (Carrier, Carrier) {
    let options = options(kind);
    let mut listener = Listener::new(options.clone()).unwrap();
    let contact = listener.contact().unwrap();
    let (connected, accepted) = meet(&mut listener, &contact, &options);
    let (connected, accepted) = (connected.unwrap(), accepted.unwrap());
    assert_eq!((connected.kind, accepted.kind), (kind, kind));
    (connected, accepted)
}
