//! A thread that waits for a reply reads the connection itself.
//!
//! So the reply goes from the kernel to whoever wants it, without another thread in between, which
//! would have to be woken and to wake (20 to 45 µs each on a virtual machine). First it looks again
//! and again for a short while, then it sleeps. What else arrives meanwhile it hands to those who
//! wait for it.

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

/// The most time that a thread spins for a reply before it sleeps: about what a callee takes that
/// has to be woken. Waking up this thread as well would take as long again.
pub(crate) const SPIN_FOR_REPLY: Duration = Duration::from_micros(150);

/// The most time that a thread tries to take the reader lock before it waits for the thread that
/// has it.
const LOCK_SOON: Duration = Duration::from_micros(5);

impl Client {
    /// Blocks until the slot is filled or the time is over.
    ///
    /// The slot is one that this connection fills.
    pub(crate) fn wait<T>(self: &Arc<Self>, slot: &Slot<T>, until: Option<Instant>) {
        while !slot.is_filled() {
            if until.is_some_and(|until| until <= Instant::now()) || self.link().ended().is_some() {
                // Whoever ended the connection is about to fill the slot.
                return slot.park(until);
            }
            let Some(mut reader) = self.reader_soon(slot) else {
                return slot.park(until);
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
                if until.is_some_and(|until| until <= now) {
                    break;
                }
                if polls.go_on(now) {
                    continue;
                }
                if reader.prepare_to_sleep() {
                    if is_quiet {
                        self.link().disarm();
                    }
                    // A thread that fills it from now on wakes this one.
                    if slot.watch(&Waker::from(Arc::clone(&self.waker))) {
                        sleep(self, until);
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

    /// The reader lock, unless another thread waits for replies already, or the slot is filled
    /// first. A driver that polls has the lock for moments only; if it read each reply, one thread
    /// more would run and one more be woken, for every call.
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

fn sleep(client: &Client, until: Option<Instant>) {
    let mut descriptors = [
        PollFd::new(client.link().readable(), PollFlags::IN | PollFlags::RDHUP),
        // A call may end in other ways than by a frame: by cancelling, by its deadline, on a thread
        // that reads large parts, or with an earlier connection.
        PollFd::new(&client.waker, PollFlags::IN),
    ];
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // An interruption is a reason to look, like everything else that ends it.
    let _ = rdzv_event::poll(&mut descriptors, left);
}
