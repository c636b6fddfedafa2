//! Keep-alive: finding out that the host of a silent connection is gone.
//!
//! A host that loses power, or a network that is cut, closes no connection. The kernel asks a
//! silent peer whether it is there; a process that is stopped is, since its kernel answers for it.
//! A client of PyTorch never connects again, so its connections get minutes and are never ended for
//! replies that it does not take.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_user_timeout,
};

/// When the kernel asks the peer of a silent connection whether it is there. Whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first question.
    pub idle: Duration,
    /// Time between two questions.
    pub interval: Duration,
    /// Questions without an answer after which the connection is dropped.
    pub attempts: u32,
    /// Time after which it is dropped although data for it is under way; `None`: as long as the
    /// kernel sends it again, some 15 minutes.
    pub unacknowledged: Option<Duration>,
}

impl Default for KeepAlive {
    /// Two minutes: 60 s of silence and 6 questions 10 s apart.
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
    /// For agents: 15 s, as their heartbeats take to be missed. What was sent to one may be unacknowledged for `silence`, if
    /// that is known.
    pub(super) fn of_agent(silence: Option<Duration>) -> Self {
        Self {
            idle: Duration::from_secs(5),
            interval: Duration::from_secs(5),
            attempts: 2,
            unacknowledged: Some(silence.unwrap_or(Duration::from_secs(15))),
        }
    }

    /// Sets it for a connection, or for all that a listening socket accepts.
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
