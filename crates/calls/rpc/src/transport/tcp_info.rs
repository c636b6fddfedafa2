//! Kernel data about a TCP connection.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{GetSockOpt as _, SetSockOpt as _};
use nix::{getsockopt_impl, setsockopt_impl, sockopt_impl};
use rdzv_rpc_proto::heartbeat::Seen;
use rustix::net::sockopt;

/// `TCP_RTO_MAX_MS`, since Linux 6.15: maximum interval of retransmissions.
const RETRY_AT_LEAST: libc::c_int = 44;

sockopt_impl!(
    /// `TCP_INFO`: a structure of numbers that the kernel writes.
    Info,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    libc::tcp_info
);

sockopt_impl!(
    LongestPause,
    SetOnly,
    libc::IPPROTO_TCP,
    RETRY_AT_LEAST,
    u32
);

/// Returns the latest activity of the peer's host.
pub(crate) fn seen(socket: &impl AsFd) -> io::Result<Seen> {
    let info = Info.get(socket)?;
    let milliseconds = |count| Duration::from_millis(u64::from(count));
    Ok(Seen {
        silent: milliseconds(info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv)),
        sent: milliseconds(info.tcpi_last_data_sent),
        unacknowledged: info.tcpi_unacked > 0,
        probes: info.tcpi_probes.into(),
    })
}

/// Limits the interval of the system's retransmissions and probes.
///
/// Without this option (before Linux 6.15) the interval grows to two minutes while the peer accepts
/// or acknowledges nothing.
pub(super) fn retry_every(socket: &impl AsFd, pause: Duration) {
    const SECONDS: std::ops::RangeInclusive<u64> = 1..=120;
    let seconds = pause.as_secs().clamp(*SECONDS.start(), *SECONDS.end());
    let milliseconds = u32::try_from(seconds * 1000).unwrap_or(u32::MAX);
    // An older kernel does not have this option.
    let _ = LongestPause.set(socket, &milliseconds);
}

/// Keeps the kernel from closing a connection whose peer reads nothing.
///
/// The kernel would close the connection even if the peer's host is alive. Its limit for
/// unacknowledged data also applies to a receive window that stays closed.
pub(crate) fn leave_open(socket: &impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_user_timeout(socket, 0)?)
}
