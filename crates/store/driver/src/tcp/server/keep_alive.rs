//! Keep-alive: detecting that the host of a silent connection is lost.
//!
//! A host that loses power, or a network that is cut, closes no connection. So the kernel sends
//! probes to a silent peer. A stopped process still answers, because its kernel answers for it. A
//! client of PyTorch never connects again. So its connections get minutes, and they are never ended
//! because it does not read replies.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_user_timeout,
};

/// The times of the kernel's probes on a silent connection, in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between two probes.
    pub interval: Duration,
    /// Number of probes without an answer after which the connection is dropped.
    pub attempts: u32,
    /// Time after which a connection with unacknowledged data is dropped.
    /// `None` means as long as the kernel resends the data, about 15 minutes.
    pub unacknowledged: Option<Duration>,
}

impl Default for KeepAlive {
    /// Returns two minutes: 60 s of silence and 6 probes 10 s apart.
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(10),
            attempts: 6,
            unacknowledged: None,
        }
    }
}

impl KeepAlive {
    /// Returns the times for agents: 15 s, like the limit of their heartbeats.
    /// Data for an agent may be unacknowledged for `silence`, if that is known.
    pub(super) fn of_agent(silence: Option<Duration>) -> Self {
        Self {
            idle: Duration::from_secs(5),
            interval: Duration::from_secs(5),
            attempts: 2,
            unacknowledged: Some(silence.unwrap_or(Duration::from_secs(15))),
        }
    }

    /// Sets the times of a connection, or of all that a listening socket accepts.
    pub(crate) fn set(&self, socket: impl AsFd) -> Result<(), Errno> {
        set_socket_keepalive(&socket, true)?;
        set_tcp_keepidle(&socket, self.idle)?;
        set_tcp_keepintvl(&socket, self.interval)?;
        set_tcp_keepcnt(&socket, self.attempts)?;
        if let Some(limit) = self.unacknowledged {
            let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
            set_tcp_user_timeout(&socket, limit)?;
        }
        Ok(())
    }
}
