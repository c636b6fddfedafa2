//! Whether the other host is there, at a connection over TCP.
//!
//! The system of this host asks the other one by itself, and this looks at what came of it, once a
//! beat for all connections of an agent together. See [`rdzv_rpc_proto::heartbeat`] for what is
//! made of it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rdzv_lock::Mutex;
use rdzv_rpc_proto::heartbeat::{Heartbeat, Rhythm};

use crate::transport::tcp_info;
use crate::wire::clock;

/// The heartbeat of one connection.
pub(crate) struct Heart {
    rhythm: Rhythm,
    heartbeat: Mutex<Heartbeat>,
}

impl Heart {
    /// Takes over from the system, which ends connections whose peer takes nothing.
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

    /// When to look next.
    pub(crate) fn next(&self) -> Instant {
        clock::instant(self.heartbeat.lock().next())
    }

    /// Looks, if it is time or nearly so. Returns the time of the next look.
    ///
    /// One look serves for all connections.
    ///
    /// # Errors
    ///
    /// The host is gone: the time since its last message.
    pub(crate) fn look(&self, socket: &OwnedFd, now: Instant) -> Result<Instant, Duration> {
        let next = self.next();
        if next > now + self.rhythm.beat() / 2 {
            return Ok(next);
        }
        let mut heartbeat = self.heartbeat.lock();
        // A connection of which the system knows nothing is over, which its reader notices.
        let dead = tcp_info::seen(socket)
            .ok()
            .and_then(|seen| heartbeat.look(clock::mono(now), &seen));
        match dead {
            Some(silent) => Err(silent),
            None => Ok(clock::instant(heartbeat.next()).max(now + SHORTEST)),
        }
    }
}

/// Whatever the system says, looks are no closer together.
const SHORTEST: Duration = Duration::from_millis(10);
