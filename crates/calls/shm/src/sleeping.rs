//! The flag by which a sleeping side asks for a wake-up, without losing one.
//!
//! ```text
//!   who goes to sleep                      who has done something
//!   1. flag = 1                            1. publish what was done
//!   2. fence                               2. fence
//!   3. is there something to do? if so,    3. is the flag 1? if so, take it
//!      flag = 0 and stay awake                back to 0 and signal
//!   4. sleep until it is signalled
//! ```
//!
//! Of the two fences one is first. If it is the sleeper's, the other one sees the flag; if not, the
//! sleeper sees what was done. Both may happen: then one wake-up is spurious. While nobody sleeps,
//! nobody signals, so that a busy ring needs no system call.

use std::sync::atomic::{AtomicU32, Ordering, fence};

const AWAKE: u32 = 0;
const SLEEPS: u32 = 1;

/// An atomic word, and the fence that goes with it.
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

/// Says that this side sleeps, and asks then whether there is nothing to do.
///
/// True: the signals will ring. False: [`rise`] again.
pub(crate) fn announce<F: Flag>(flag: &F, nothing_to_do: impl FnOnce() -> bool) -> bool {
    flag.store_relaxed(SLEEPS);
    F::fence();
    nothing_to_do()
}

/// Says that this side is awake again.
///
/// True: the other one has signalled, or is about to.
pub(crate) fn rise<F: Flag>(flag: &F) -> bool {
    flag.exchange(AWAKE) == AWAKE
}

/// `true` if the other side has to be woken up, after something was published.
///
/// True at most once for each time that it went to sleep.
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

    /// Writes up to this position, in a thread of its own.
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

    /// Every interleaving, and every value that a weak memory may show: who slept is rung for.
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
            assert!(rung <= 1, "it rang {rung} times for one sleep");
            if slept == 1 && seen < 2 {
                assert_eq!(rung, 1, "it slept with {seen} of 2 seen");
            }
        });
    }

    /// Twice to sleep in a row, as a reader does that is faster than the writer.
    #[test]
    fn who_rises_and_sleeps_again_is_rung_for_again() {
        loom::model(|| {
            let world = Arc::new(World::default());
            let producer = write_to(1, &world);
            let empty = |seen| world.written.load(Ordering::Acquire) == seen;
            // A wake-up for nothing, such as that of a signal.
            let _ = announce(&world.flag, || empty(0));
            let woken = rise(&world.flag);
            let slept = announce(&world.flag, || empty(0));
            producer.join().unwrap();
            if slept {
                let rung = world.signals.load(Ordering::Acquire);
                let wanted = 1 + u32::from(woken);
                assert_eq!(rung, wanted, "nobody rang for the second sleep");
            }
        });
    }
}
