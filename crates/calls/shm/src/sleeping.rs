//! Flag by which a sleeping side requests a wake-up, without losing one.
//!
//! ```text
//!   side that goes to sleep                side that has published something
//!   1. flag = 1                            1. publish
//!   2. fence                               2. fence
//!   3. is there something to do?           3. is the flag 1? if so, set it
//!      if so, flag = 0, stay awake            to 0 and signal
//!   4. sleep until the signal
//! ```
//!
//! One of the two fences is first. If the sleeper's fence is first, the other side sees the flag.
//! Otherwise the sleeper sees what was published. Both may happen: then one wake-up is spurious.
//! While no side sleeps, no side signals, so a busy ring needs no system call.

use std::sync::atomic::{AtomicU32, Ordering, fence};

const AWAKE: u32 = 0;
const SLEEPS: u32 = 1;

/// Atomic word, and the fence that belongs to it.
pub(crate) trait Flag {
    fn load_relaxed(&self) -> u32;
    fn store_relaxed(&self, value: u32);
    fn exchange(&self, value: u32) -> u32;
    fn fence();
}

impl Flag for AtomicU32 {
    fn load_relaxed(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }

    fn store_relaxed(&self, value: u32) {
        self.store(value, Ordering::Relaxed);
    }

    fn exchange(&self, value: u32) -> u32 {
        self.swap(value, Ordering::AcqRel)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Announces that this side sleeps, and then checks for work.
///
/// Returns `true` if there is nothing to do: the other side will signal. On `false`, call [`rise`].
pub(crate) fn announce<F: Flag>(flag: &F, nothing_to_do: impl FnOnce() -> bool) -> bool {
    flag.store_relaxed(SLEEPS);
    F::fence();
    nothing_to_do()
}

/// Ends the announced sleep of this side.
///
/// Returns `true` if the other side has signalled, or is about to.
pub(crate) fn rise<F: Flag>(flag: &F) -> bool {
    flag.exchange(AWAKE) == AWAKE
}

/// `true` if the other side must be woken, after a position was published.
///
/// The result is `true` at most once for each sleep of the other side.
pub(crate) fn must_wake<F: Flag>(flag: &F) -> bool {
    F::fence();
    flag.load_relaxed() != AWAKE && flag.exchange(AWAKE) != AWAKE
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32 as Word, AtomicU64 as Position, fence};
    use loom::thread;

    use super::*;

    impl Flag for Word {
        fn load_relaxed(&self) -> u32 {
            self.load(Ordering::Relaxed)
        }

        fn store_relaxed(&self, value: u32) {
            self.store(value, Ordering::Relaxed);
        }

        fn exchange(&self, value: u32) -> u32 {
            self.swap(value, Ordering::AcqRel)
        }

        fn fence() {
            fence(Ordering::SeqCst);
        }
    }

    #[derive(Default)]
    struct World {
        written: Position,
        flag: Word,
        signals: Word,
    }

    /// Publishes the positions up to this one, in a separate thread.
    fn write_to(last: u64, world: &Arc<World>) -> thread::JoinHandle<()> {
        let world = Arc::clone(world);
        thread::spawn(move || {
            for position in 1..=last {
                world.written.store(position, Ordering::Release);
                if must_wake(&world.flag) {
                    world.signals.fetch_add(1, Ordering::AcqRel);
                }
            }
        })
    }

    /// Checks that every sleeper gets a signal.
    ///
    /// The model has every interleaving, and every value that weak memory may show.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let world = Arc::new(World::default());
            let producer = write_to(2, &world);
            let mut slept = 0;
            let seen = world.written.load(Ordering::Acquire);
            if announce(&world.flag, || {
                world.written.load(Ordering::Acquire) == seen
            }) {
                slept += 1;
            } else {
                rise(&world.flag);
            }
            producer.join().unwrap();
            let rung = world.signals.load(Ordering::Acquire);
            assert!(rung <= 1, "the writer signalled {rung} times for one sleep");
            if slept == 1 && seen < 2 {
                assert_eq!(rung, 1, "it slept with {seen} of 2 seen");
            }
        });
    }

    /// Checks two sleeps in a row, as with a reader that is faster than the writer.
    #[test]
    fn who_rises_and_sleeps_again_is_rung_for_again() {
        loom::model(|| {
            let world = Arc::new(World::default());
            let producer = write_to(1, &world);
            let empty = |seen| world.written.load(Ordering::Acquire) == seen;
            // A wake-up without a reason, for example by a signal.
            let _ = announce(&world.flag, || empty(0));
            let woken = rise(&world.flag);
            let slept = announce(&world.flag, || empty(0));
            producer.join().unwrap();
            if slept {
                let rung = world.signals.load(Ordering::Acquire);
                let wanted = 1 + u32::from(woken);
                assert_eq!(rung, wanted, "the second sleep got no signal");
            }
        });
    }
}
