//! A thread that waits for a reply reads the connection itself.
//!
//! So the reply goes from the kernel to whoever wants it, without another thread in between, which
//! would have to be woken and to wake (20 to 45 µs each on a virtual machine). First it looks again
//! and again for a short while, then it sleeps. What else arrives meanwhile it hands to those who
//! wait for it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

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
                    // Whoever fills it from now on rings.
                    if slot.watch(&Waker::from(Arc::clone(&self.bell))) {
                        sleep(self, until);
                        self.bell.hush();
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

/// What wakes a thread that sleeps at a connection, beside its frames: a call may end in other ways,
/// by cancelling, by its deadline, on a thread that reads large parts, or with an earlier connection.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    fn descriptor(&self) -> &OwnedFd {
        &self.0
    }

    /// It was heard. There is one at a time who listens: who has the helm.
    fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // It fails only if the count is at its end, and then it rings anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

fn sleep(client: &Client, until: Option<Instant>) {
    let mut descriptors = [
        PollFd::new(client.link().readable(), PollFlags::IN | PollFlags::RDHUP),
        PollFd::new(client.bell.descriptor(), PollFlags::IN),
    ];
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = left.map(|left| Timespec {
        tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    // An interruption is a reason to look, like everything else that ends it.
    let _ = poll(&mut descriptors, timeout.as_ref());
}
