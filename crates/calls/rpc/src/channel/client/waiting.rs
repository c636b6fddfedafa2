//! A thread that waits for a reply reads the connection itself.
//!
//! The reply reaches the caller directly, unless another thread already reads the connection. With
//! another thread in between, two wake-ups would be necessary: of that thread and of the caller (20
//! to 45 µs each on a virtual machine). The caller first polls for a short time and then sleeps.
//! The caller passes other frames to the threads that wait for these frames.

use std::hint::spin_loop;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use rdzv_lock::MutexGuard;
use rustix::event::{PollFd, PollFlags};

use crate::channel::client::Client;
use crate::channel::slot::Slot;
use crate::wire::link::{Endpoint, Pumped, pump, rest};
use crate::wire::reader::Reader;

/// Longest time that a thread spins for a reply before it sleeps.
/// It is about the time that a sleeping callee needs to wake up and answer. Waking this thread as
/// well would take that long again.
pub(crate) const SPIN_FOR_REPLY: Duration = Duration::from_micros(150);

/// Longest time that a thread tries to acquire a reader lock that is held.
/// After that it waits for the thread that holds the lock.
const LOCK_SOON: Duration = Duration::from_micros(5);

impl Client {
    /// Blocks until the slot is filled or the deadline has passed.
    ///
    /// `slot` must be a slot that this connection fills.
    pub(crate) fn wait<T>(self: &Arc<Self>, slot: &Slot<T>, deadline: Option<Instant>) {
        while !slot.is_filled() {
            if deadline.is_some_and(|deadline| deadline <= Instant::now())
                || self.link().ended().is_some()
            {
                // The thread that ended the connection is about to fill the slot.
                return slot.park(deadline);
            }
            let Some(mut reader) = self.reader_soon(slot) else {
                return slot.park(deadline);
            };
            let is_quiet = reader.half().is_quiet_awake();
            if !is_quiet {
                self.link().disarm();
            }
            let mut polls = self.spin.poll_from(Instant::now());
            let mut ended = false;
            while !slot.is_filled() {
                if pump(self, &mut reader) == Pumped::Ended {
                    ended = true;
                    break;
                }
                if slot.is_filled() {
                    break;
                }
                let now = Instant::now();
                if deadline.is_some_and(|deadline| deadline <= now) {
                    break;
                }
                if polls.go_on(now) {
                    continue;
                }
                if reader.prepare_to_sleep() {
                    if is_quiet {
                        self.link().disarm();
                    }
                    // A thread that fills the slot from now on wakes this one.
                    if slot.watch(&Waker::from(Arc::clone(&self.waker))) {
                        sleep(self, deadline);
                        self.waker.drain();
                    }
                    reader.awake();
                }
            }
            polls.end(Instant::now());
            if ended {
                drop(reader);
            } else {
                rest(self, reader);
            }
        }
    }

    /// Acquires the reader lock, unless the slot is filled first.
    /// Returns `None` if another thread holds the lock for more than `LOCK_SOON`, because that
    /// thread probably waits for replies. A polling driver holds the lock only briefly. If the
    /// driver read each reply, every call would need one more running thread and one more wake-up.
    fn reader_soon<T>(&self, slot: &Slot<T>) -> Option<MutexGuard<'_, Reader>> {
        let begun = Instant::now();
        loop {
            if let Some(reader) = self.link().try_reader() {
                return Some(reader);
            }
            if slot.is_filled() || begun.elapsed() > LOCK_SOON {
                return None;
            }
            spin_loop();
        }
    }
}

fn sleep(client: &Client, deadline: Option<Instant>) {
    let mut descriptors = [
        PollFd::new(client.link().readable(), PollFlags::IN | PollFlags::RDHUP),
        // A call may also end without a frame: by cancellation, by its deadline, on a thread that
        // reads large parts, or with an earlier connection.
        PollFd::new(&client.waker, PollFlags::IN),
    ];
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // After an interruption the caller checks the slot, as after any other event.
    let _ = rdzv_event::poll(&mut descriptors, left);
}
