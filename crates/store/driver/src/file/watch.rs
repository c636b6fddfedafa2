//! Sleeping until the file may have changed.
//!
//! The kernel reports (inotify) when a process on this host writes to the file. It does not report
//! changes by another host on a network file system. It may also refuse a watch, because the number
//! per user is limited. A sleep therefore also ends after an interval, which depends on whether
//! notifications are reliable.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::locked::Identity;

/// Interval of checks with reliable notifications: only a safety net.
const NOTIFIED: Duration = Duration::from_secs(1);

/// Interval of checks without reliable notifications: PyTorch's interval.
const UNNOTIFIED: Duration = Duration::from_millis(10);

/// Magic numbers of file systems that only this host writes to.
/// The file systems are ext2-4, xfs, btrfs, tmpfs, ramfs, overlayfs, f2fs and zfs.
const LOCAL: [u64; 8] = [
    0xEF53,
    0x5846_5342,
    0x9123_683E,
    0x0102_1994,
    0x8584_58F6,
    0x794C_7630,
    0xF2F5_2010,
    0x2FC1_2FC1,
];

#[derive(Debug)]
pub(super) struct Watch {
    watched: Option<Identity>,
    inotify: Option<OwnedFd>,
    interval: Duration,
}

impl Watch {
    /// Watches the file at `path`, whose last known identity is `identity`.
    pub(super) fn set(path: &Path, identity: Option<Identity>) -> Self {
        let inotify = identity.and_then(|_| watch_file(path).ok());
        let is_local = || {
            let magic = rustix::fs::statfs(path).map_or(0, |found| found.f_type as u64);
            LOCAL.contains(&(magic & 0xFFFF_FFFF))
        };
        let interval = if inotify.is_some() && is_local() {
            NOTIFIED
        } else {
            UNNOTIFIED
        };
        Self {
            watched: identity,
            inotify,
            interval,
        }
    }

    /// `true` if the watch was set for the file with this identity.
    pub(super) fn is_on(&self, identity: Option<Identity>) -> bool {
        self.watched == identity
    }

    /// Sleeps until the file may have changed, for at most `most`.
    pub(super) fn wait(&self, most: Option<Duration>) {
        let span = most.map_or(self.interval, |most| most.min(self.interval));
        let span = Timespec::try_from(span).expect("the interval is short");
        let mut sources: Vec<PollFd<'_>> = self
            .inotify
            .iter()
            .map(|inotify| PollFd::new(inotify, PollFlags::IN))
            .collect();
        // An early end, for any reason, only causes one more check.
        let woken = poll(&mut sources, Some(&span));
        if let (Ok(1..), Some(inotify)) = (woken, &self.inotify) {
            // The events themselves do not matter; reading them prevents repeated reports.
            let mut events = [0_u8; 4096];
            while matches!(rustix::io::read(inotify, &mut events), Ok(1..)) {}
        }
    }
}

fn watch_file(path: &Path) -> rustix::io::Result<OwnedFd> {
    let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let changes =
        WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
    inotify::add_watch(&inotify, path, changes)?;
    Ok(inotify)
}
