//! The way back to the interpreter, for threads that call again and again.
//!
//! Between two calls a thread often has the interpreter for a few microseconds only. A thread that
//! comes back meanwhile, on another processor, would go to sleep for it, and with dozens of threads
//! most of the time would be theirs to fall asleep and to be woken up. So it waits awake for a
//! moment, until the thread that came back before it has called again. Nothing depends on it: in
//! the end every thread takes the interpreter's own lock.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// The longest wait: more than a thread needs between two calls in a loop, less than to fall asleep and be woken up.
const LONGEST: Duration = Duration::from_micros(10);

/// Number of looks between two at the clock.
const LOOKS: u32 = 16;

/// Whether a thread has come back from a call, and has not called again.
static IS_BACK: AtomicBool = AtomicBool::new(false);

/// This thread has left the interpreter.
pub(super) fn left() {
    IS_BACK.store(false, Ordering::Relaxed);
}

/// This thread is about to come back to the interpreter.
pub(super) fn wait() {
    if !IS_BACK.swap(true, Ordering::Relaxed) || is_alone() {
        return;
    }
    let begun = Instant::now();
    while begun.elapsed() < LONGEST {
        for _ in 0..LOOKS {
            spin_loop();
            if !IS_BACK.load(Ordering::Relaxed) && !IS_BACK.swap(true, Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// With one processor the other thread cannot go on meanwhile.
fn is_alone() -> bool {
    static ALONE: OnceLock<bool> = OnceLock::new();
    *ALONE.get_or_init(|| available_parallelism().is_ok_and(|processors| processors.get() == 1))
}
