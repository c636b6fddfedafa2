//! Name resolution.
//!
//! The system's lookup cannot be interrupted: it lasts until the name server answers or the system
//! stops waiting. It therefore runs on a separate thread.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rdzv_core::endpoint::bare_host;
use rdzv_core::reminder::{self, Reminder};

use crate::interrupt;

/// Resolves a host name or address and returns its socket addresses.
///
/// Each address has the specified port. If `within` is `None`, the wait for the name server has no
/// time limit. A slow lookup is logged while it is in progress.
///
/// # Errors
///
/// Returns the system's error, [`io::ErrorKind::TimedOut`] if the lookup takes longer than
/// `within`, or [`io::ErrorKind::Interrupted`] if the calling thread was interrupted.
pub fn resolve(host: &str, port: u16, within: Option<Duration>) -> io::Result<Vec<SocketAddr>> {
    let host = bare_host(host);
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    // The lookup runs on a separate thread, which may outlive the call.
    let (sender, receiver) = mpsc::sync_channel(1);
    let name = host.to_owned();
    thread::Builder::new()
        .name("rdzv-resolve".to_owned())
        .spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs();
            let _nobody_waits_any_more = sender.send(found.map(Iterator::collect));
        })?;
    let (began, mut reminder) = (Instant::now(), Reminder::default());
    loop {
        let left = within.map(|within| within.saturating_sub(began.elapsed()));
        let next = reminder.next().saturating_sub(began.elapsed());
        let wait = left.map_or(next, |left| left.min(next));
        match receiver.recv_timeout(interrupt::slice(Some(wait)).unwrap_or(wait)) {
            Ok(found) => return found,
            Err(_) if interrupt::is_wanted() => return Err(io::ErrorKind::Interrupted.into()),
            Err(RecvTimeoutError::Timeout) if left.is_none_or(|left| !left.is_zero()) => {
                remind(host, began.elapsed(), left, &mut reminder);
            }
            Err(_) => {
                let why = "the lookup of its name timed out";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
    }
}

fn remind(host: &str, elapsed: Duration, left: Option<Duration>, reminder: &mut Reminder) {
    if !reminder.is_due(elapsed) {
        return;
    }
    let left = left.map(|left| left.as_secs());
    let retries = left.map_or_else(
        || "still waiting".to_owned(),
        |left| format!("{left} s left"),
    );
    tracing::warn!(
        target: reminder::TARGET,
        left,
        "no name server has answered the lookup of '{host}'; {retries}; check the name, and \
         /etc/resolv.conf on this host",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_local_names_are_found() {
        let found = resolve("127.0.0.1", 7, None).unwrap();
        assert_eq!(found, ["127.0.0.1:7".parse().unwrap()]);
        let found = resolve("localhost", 7, Some(Duration::from_secs(30))).unwrap();
        assert!(
            found.iter().all(|address| address.ip().is_loopback()),
            "{found:?}"
        );
    }

    #[test]
    fn what_has_no_address_is_an_error() {
        assert!(resolve("no-such-host.invalid", 7, Some(Duration::from_secs(30))).is_err());
    }
}
