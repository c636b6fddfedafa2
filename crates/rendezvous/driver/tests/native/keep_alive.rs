//! Keep-alive of agents' connections.
//!
//! A lost host of an agent is noticed sooner than the host of a worker.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{
    socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl, tcp_user_timeout,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::agents::{Agent, connect, host, settings};

/// Returns the sockets that the server, a thread of this process, has accepted.
fn accepted(server: SocketAddr) -> Vec<TcpStream> {
    let myself = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = numbers.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    // Another thread may close a descriptor at the same time.
    let copies = numbers.filter_map(|number: i32| {
        let copy: OwnedFd = pidfd_getfd(&myself, number, PidfdGetfdFlags::empty()).ok()?;
        Some(TcpStream::from(copy))
    });
    let is_accepted = |stream: &TcpStream| {
        let port = stream.local_addr().map(|address| address.port());
        stream.peer_addr().is_ok() && port.is_ok_and(|port| port == server.port())
    };
    copies.filter(is_accepted).collect()
}

/// Returns the keep-alive settings and the TCP user timeout of a socket.
///
/// The settings are the idle time, the interval and the number of probes. The timeout is the time
/// for which sent bytes may stay unacknowledged.
fn settings_of(stream: &TcpStream) -> (Duration, Duration, u32, u32) {
    assert!(socket_keepalive(stream).unwrap());
    (
        tcp_keepidle(stream).unwrap(),
        tcp_keepintvl(stream).unwrap(),
        tcp_keepcnt(stream).unwrap(),
        tcp_user_timeout(stream).unwrap(),
    )
}

#[test]
fn the_connection_of_an_agent_is_watched_more_closely_than_that_of_a_client() {
    let server = host();
    let address = server.local_addr();
    let seconds = Duration::from_secs;
    let of_client = (seconds(60), seconds(10), 6, 0);
    let of_agent = (seconds(5), seconds(5), 2, 15_000);

    let client = connect(address);
    let sockets = accepted(address);
    assert!(!sockets.is_empty());
    assert!(
        sockets
            .iter()
            .all(|socket| settings_of(socket) == of_client)
    );

    let mut agent = Agent::new(address, 0, settings(1, 1));
    agent.join().unwrap();
    let sockets = accepted(address);
    let close = sockets
        .iter()
        .filter(|socket| settings_of(socket) == of_agent);
    assert_eq!(close.count(), 1, "{sockets:?}");
    let rest = sockets
        .iter()
        .filter(|socket| settings_of(socket) == of_client);
    assert_eq!(rest.count(), sockets.len() - 1, "{sockets:?}");
    drop((client, agent));
}
