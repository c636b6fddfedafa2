//! Keep-alive: detects that the host of a silent peer is lost.
//!
//! A host that loses power, or a network that is cut, closes no connection. The kernel therefore
//! sends probes to a silent peer. A stopped process still answers, because its kernel answers for
//! it. A PyTorch client never reconnects. By default, its connection is therefore dropped only
//! after minutes of silence, and never because the client does not read its replies.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_user_timeout,
};

/// Timing of the kernel's keep-alive probes, in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// Time without data from the peer before the first probe is sent.
    pub idle: Duration,
    /// Time between two probes.
    pub interval: Duration,
    /// Number of unanswered probes after which the connection is dropped.
    pub attempts: u32,
    /// Time after which a connection with unacknowledged data is dropped.
    /// `None` uses the kernel's own limit for retransmission, about 15 minutes.
    pub unacknowledged: Option<Duration>,
}

impl Default for KeepAlive {
    /// Returns settings that detect a lost host after two minutes.
    /// The first probe follows 60 s of silence; 6 probes are sent 10 s apart.
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
    /// Returns the settings for agents, which detect a lost host after 15 s.
    /// With `silence`, data for an agent may remain unacknowledged for that time instead.
    pub(super) fn of_agent(silence: Option<Duration>) -> Self {
        Self {
            idle: Duration::from_secs(5),
            interval: Duration::from_secs(5),
            attempts: 2,
            unacknowledged: Some(silence.unwrap_or(Duration::from_secs(15))),
        }
    }

    /// Applies the settings to a connection, or to a listening socket.
    /// A connection inherits the settings of the socket that accepts it.
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
