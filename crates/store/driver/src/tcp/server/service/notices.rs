//! The log lines that peers can cause, with a rate limit.
//!
//! Lines beyond the limit are counted.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rdzv_core::quantity::count;
use rdzv_core::rate::RateLimit;
use rdzv_core::time::{Mono, earliest};
use rdzv_store_proto::server::{CloseReason, ServerStats};
use rustix::io::Errno;

/// Maximum number of lines about closed connections in one interval.
/// The same limit applies to lost connections.
const MOST: u32 = 10;

const INTERVAL: Duration = Duration::from_secs(10);

/// The rate limits; see the [module](self).
#[derive(Debug)]
pub(super) struct Notices {
    closed: RateLimit,
    not_accepted: RateLimit,
    short: RateLimit,
    lost: RateLimit,
}

impl Default for Notices {
    fn default() -> Self {
        Self {
            closed: RateLimit::new(MOST, INTERVAL),
            // The next attempt fails for the same reason.
            not_accepted: RateLimit::new(1, INTERVAL),
            short: RateLimit::new(1, INTERVAL),
            lost: RateLimit::new(MOST, INTERVAL),
        }
    }
}

impl Notices {
    pub(super) fn closes(&mut self, now: Mono, peer: Option<SocketAddr>, reason: &CloseReason) {
        if let CloseReason::NotNeeded(_) = reason {
            let peer = shown(peer);
            tracing::debug!("the store server closes the connection from {peer}: {reason}");
        } else if self.closed.admits(now) {
            let peer = shown(peer);
            tracing::warn!("the store server closes the connection from {peer}: {reason}");
        }
    }

    /// Logs that the system cannot accept a connection.
    /// For example, the system's table of open files is full, or the system lacks memory.
    pub(super) fn cannot_accept(&mut self, now: Mono, error: Errno) {
        if self.not_accepted.admits(now) {
            tracing::warn!(%error, "the store server cannot accept a connection");
        }
    }

    /// `true` if a lack of descriptors may be logged now.
    pub(super) fn is_short(&mut self, now: Mono) -> bool {
        // The next line has the total number.
        self.short.take_dropped(now);
        self.short.admits(now)
    }

    /// Logs a lost connection, the last of `total` until now.
    pub(super) fn lost(&mut self, now: Mono, peer: Option<SocketAddr>, total: u64) {
        if self.lost.admits(now) {
            tracing::warn!(
                "the store server drops the connection from {}, which no longer answers; lost \
                 connections of this kind until now: {total}",
                shown(peer)
            );
        }
    }

    /// Returns the time at which [`Notices::tell`] has something to do.
    pub(super) fn deadline(&self) -> Option<Mono> {
        earliest([self.closed.deadline(), self.not_accepted.deadline()])
    }

    /// Logs the number of lines that were dropped in past intervals.
    pub(super) fn tell(&mut self, now: Mono) {
        let seconds = INTERVAL.as_secs();
        // The next line has the total number.
        self.lost.take_dropped(now);
        if let Some(dropped) = self.closed.take_dropped(now) {
            tracing::warn!(
                "the store server closed {} within {seconds} s for reasons like these",
                count(dropped, "more connection")
            );
        }
        if let Some(dropped) = self.not_accepted.take_dropped(now) {
            tracing::warn!(
                "the store server failed to accept a connection {} within {seconds} s",
                count(dropped, "more time")
            );
        }
    }
}

/// Logs the holders of the descriptors when they are scarce.
pub(super) fn short_of_descriptors(
    used: &str,
    stats: ServerStats,
    holders: &[(Option<IpAddr>, usize)],
) {
    let shown = |(address, count): &(Option<IpAddr>, usize)| match address {
        Some(IpAddr::V6(network)) => format!("{network}/64: {count}"),
        Some(address) => format!("{address}: {count}"),
        None => format!("an unknown address: {count}"),
    };
    let holders: Vec<String> = holders.iter().map(shown).collect();
    tracing::warn!(
        "the store server is short of descriptors: {used}, {} of them by its connections ({}); \
         until now, it closed {} without an agent to free descriptors; raise the limit of open files (ulimit -n), or restrict access to the port with a firewall",
        stats.connections,
        holders.join(", "),
        count(stats.refused_for_descriptors, "connection"),
    );
}

/// Returns the address of a peer as log lines show it.
fn shown(peer: Option<SocketAddr>) -> String {
    peer.map_or_else(|| "an unknown address".to_owned(), |peer| peer.to_string())
}
