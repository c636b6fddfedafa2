//! `epoll`, `timerfd` and `poll` with simpler types.
//!
//! Timeouts are durations, and interruptions by signals are not errors. A timeout of more than
//! about 24 days ends after 24 days (see [`timespec`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

pub use rustix::event::epoll::{Event, EventFlags};

/// An epoll instance. Each descriptor has a token, which its events contain.
///
/// The poller's own descriptor is readable when one of the registered descriptors is ready.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// Creates a poller without descriptors.
    ///
    /// # Errors
    ///
    /// Returns the system's error if no descriptors are left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Registers a descriptor.
    ///
    /// # Errors
    ///
    /// Returns the system's error if the descriptor is already registered or cannot be polled, or
    /// if the limit of watches is reached.
    pub fn add(&self, descriptor: impl AsFd, token: u64, interest: EventFlags) -> io::Result<()> {
        let token = EventData::new_u64(token);
        Ok(epoll::add(&self.0, descriptor, token, interest)?)
    }

    /// Changes the token and the interest of a descriptor.
    ///
    /// # Errors
    ///
    /// Returns the system's error: [`io::ErrorKind::NotFound`] if the descriptor is not registered.
    pub fn modify(
        &self,
        descriptor: impl AsFd,
        token: u64,
        interest: EventFlags,
    ) -> io::Result<()> {
        let token = EventData::new_u64(token);
        Ok(epoll::modify(&self.0, descriptor, token, interest)?)
    }

    /// Removes a descriptor; does nothing if the descriptor is not registered.
    pub fn remove(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.0, descriptor);
    }

    /// Waits for events until the timeout, or without a limit for `None`.
    ///
    /// Replaces the contents of `events`, up to its capacity. A signal ends the wait without
    /// events.
    ///
    /// # Errors
    ///
    /// Returns the system's error, which indicates a broken poller or a buffer without capacity.
    #[inline]
    pub fn wait(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        events.clear();
        let timeout = timeout.map(timespec);
        match epoll::wait(&self.0, spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Poller {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A timerfd, readable from its expiry until it is set again.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Creates a disarmed timer.
    ///
    /// # Errors
    ///
    /// Returns the system's error if no descriptors are left.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Sets the timer to expire once, after this time; `None` disarms the timer.
    /// A longer time than about 24 days counts as 24 days.
    pub fn set(&self, after: Option<Duration>) {
        // In the kernel, a value of zero disarms the timer.
        let after = after.map(|after| timespec(after.max(Duration::from_micros(1))));
        let setting = Itimerspec {
            it_interval: Timespec::default(),
            it_value: after.unwrap_or_default(),
        };
        // The call fails only for a time that is out of range, which `timespec` does not return.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &setting);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until a descriptor is ready or the timeout expires.
///
/// Without a timeout (`None`), the wait has no limit. Returns the number of ready descriptors. If a
/// signal ends the wait, the number is 0.
///
/// # Errors
///
/// Returns the system's error if no memory is left, or if there are more entries than the process
/// may have descriptors.
pub fn poll(descriptors: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(timespec);
    match rustix::event::poll(descriptors, timeout.as_ref()) {
        Err(Errno::INTR) => Ok(0),
        ready => Ok(ready?),
    }
}

/// `true` if a descriptor is readable now, or has an error or a hang-up.
pub fn is_readable(descriptor: impl AsFd) -> bool {
    let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut descriptors, Some(Duration::ZERO)).is_ok_and(|ready| ready == 1)
}

/// Converts a timeout for system calls; limits it to about 24 days.
/// For some system calls, the kernel counts the timeout in milliseconds, with 32 bits.
#[inline]
pub fn timespec(timeout: Duration) -> Timespec {
    const MOST: u64 = i32::MAX as u64 / 1000;
    Timespec {
        tv_sec: timeout.as_secs().min(MOST) as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Waker;

    #[test]
    fn a_poller_reports_no_tokens_of_removed_descriptors() {
        let poller = Poller::new().unwrap();
        let waker = Waker::new().unwrap();
        let mut events = Vec::with_capacity(4);
        let mut ready = || {
            poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
            let tokens = events.iter().map(|event| event.data.u64());
            tokens.collect::<Vec<_>>()
        };
        poller.add(&waker, 7, EventFlags::IN).unwrap();
        assert_eq!(ready(), []);
        waker.wake();
        assert_eq!(ready(), [7]);
        assert!(is_readable(&poller));
        poller.modify(&waker, 8, EventFlags::IN).unwrap();
        assert_eq!(ready(), [8]);
        poller.remove(&waker);
        assert_eq!(ready(), []);
        poller.remove(&waker);
        let missing = poller.modify(&waker, 8, EventFlags::IN).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_timer_expires_once_even_after_no_time() {
        let timer = Timer::new().unwrap();
        assert!(!is_readable(&timer));
        timer.set(Some(Duration::ZERO));
        let mut waited = [PollFd::new(&timer, PollFlags::IN)];
        let ready = poll(&mut waited, Some(Duration::from_secs(10)));
        assert_eq!(ready.unwrap(), 1);
        timer.set(Some(Duration::MAX));
        assert!(!is_readable(&timer));
        timer.set(Some(Duration::from_micros(1)));
        let mut waited = [PollFd::new(&timer, PollFlags::IN)];
        let ready = poll(&mut waited, Some(Duration::from_secs(10)));
        assert_eq!(ready.unwrap(), 1);
        timer.set(None);
        assert!(!is_readable(&timer));
    }
}
