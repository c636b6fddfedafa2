//! A thread that waits for a reply reads the connection itself.
//!
//! So the reply goes from the kernel to whoever wants it, without another thread in between, which
//! would have to be woken and to wake (20 to 45 µs each on a virtual machine). First it looks again
//! and again for a short while, then it sleeps. What else arrives meanwhile it hands to those who
//! wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::client::Client;
use super::link::{Endpoint, Pumped, pump, rest};
use crate::call::slot::Slot;

/// How long a thread looks before it sleeps. Waking up takes longer than that.
pub(crate) const LOOKING: Duration = Duration::from_micros(20);

/// How often in a row looking may be in vain before it is not done any more, until a reply comes
/// quickly again.
pub(crate) const PATIENCE: u32 = 8;

impl Client {
    /// Blocks until the slot is filled or the time is over. The slot is one that this connection fills.
    pub(crate) fn wait<T>(self: &Arc<Self>, slot: &Slot<T>, until: Option<Instant>) {
        while !slot.is_filled() {
            if until.is_some_and(|until| until <= Instant::now()) || self.link().ended().is_some() {
                // Whoever ended the connection is about to fill the slot.
                return slot.park(until);
            }
            let Some(mut helm) = self.link().try_helm() else {
                return slot.park(until);
            };
            self.link().disarm();
            let begun = Instant::now();
            let mut ended = false;
            let mut looking = self.has_patience();
            while !slot.is_filled() {
                if pump(self, &mut helm) == Pumped::Ended {
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
                if looking && now - begun < LOOKING {
                    std::hint::spin_loop();
                    continue;
                }
                looking = false;
                if helm.prepare_to_sleep() {
                    // A thread that fills it from now on wakes this one.
                    if slot.watch(&Waker::from(Arc::clone(&self.waker))) {
                        sleep(self, until);
                        self.waker.drain();
                    }
                    helm.awake();
                }
            }
            self.learn(begun.elapsed() < LOOKING);
            if ended {
                drop(helm);
            } else {
                rest(self, helm);
            }
        }
    }

    fn has_patience(&self) -> bool {
        // Now and then it is tried although it was in vain.
        let patience = self.patience.load(Ordering::Relaxed);
        patience >= 2 || fastrand::u8(..) < 8
    }

    fn learn(&self, quick: bool) {
        let patience = self.patience.load(Ordering::Relaxed);
        let now = if quick {
            PATIENCE
        } else {
            patience.saturating_sub(1)
        };
        if now != patience {
            self.patience.store(now, Ordering::Relaxed);
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
