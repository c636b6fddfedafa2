//! Detection of a lost host, for a connection over TCP.
//!
//! The kernel of this host probes the other host automatically. This module reads the result about
//! once per beat, for many connections of an agent together. [`rdzv_rpc_proto::heartbeat`]
//! interprets the result.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rdzv_lock::Mutex;
use rdzv_rpc_proto::heartbeat::{Heartbeat, Rhythm};

use crate::transport::tcp_info;
use crate::wire::clock;

pub(crate) struct Heart {
    rhythm: Rhythm,
    heartbeat: Mutex<Heartbeat>,
}

impl Heart {
    /// Creates the heartbeat of a socket.
    /// From then on the kernel keeps the socket open even if the peer accepts no data.
    pub(crate) fn new(socket: &OwnedFd, rhythm: Rhythm) -> io::Result<Self> {
        tcp_info::leave_open(socket)?;
        let now = clock::mono(Instant::now());
        Ok(Self {
            rhythm,
            heartbeat: Mutex::new(Heartbeat::new(rhythm, now)),
        })
    }

    pub(crate) fn limit(&self) -> Duration {
        self.rhythm.limit()
    }

    pub(crate) fn next(&self) -> Instant {
        clock::instant(self.heartbeat.lock().next())
    }

    /// Checks the connection if it is due, and returns the time of the next check.
    ///
    /// A check that is almost due runs as well, so that one wake-up serves several connections.
    ///
    /// # Errors
    ///
    /// Returns the time since the last message if the host is lost.
    pub(crate) fn look(&self, socket: &OwnedFd, now: Instant) -> Result<Instant, Duration> {
        let next = self.next();
        if next > now + self.rhythm.beat() / 2 {
            return Ok(next);
        }
        let mut heartbeat = self.heartbeat.lock();
        // If the kernel knows nothing about the connection, it is over, and its reader notices
        // that.
        let dead = tcp_info::seen(socket)
            .ok()
            .and_then(|seen| heartbeat.look(clock::mono(now), &seen));
        match dead {
            Some(silent) => Err(silent),
            None => Ok(clock::instant(heartbeat.next()).max(now + SHORTEST)),
        }
    }
}

/// Minimum time between two checks, whatever the kernel reports.
const SHORTEST: Duration = Duration::from_millis(10);
