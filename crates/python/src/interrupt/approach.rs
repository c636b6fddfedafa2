//! Return to the interpreter, for threads that call repeatedly.
//!
//! Between two calls a thread often has the interpreter for only a few microseconds. A thread that
//! returns during this time, on another processor, would sleep until the interpreter is free. With
//! dozens of threads, falling asleep and waking up would take most of the time. Therefore the
//! thread spins for a moment, until the thread that returned before it has called again. Nothing
//! depends on the spin: in the end every thread takes the interpreter's own lock.

use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// Maximum wait of a returning thread.
///
/// It is more than a thread needs between two calls in a loop, and less than a sleep and a wake-up
/// take.
const LONGEST: Duration = Duration::from_micros(10);

/// Number of polls between two reads of the clock.
const LOOKS: u32 = 16;

/// `true` if a thread has returned from a call, and has not called again.
static IS_BACK: AtomicBool = AtomicBool::new(false);

/// Records that this thread has left the interpreter.
pub(super) fn left() {
    IS_BACK.store(false, Ordering::Relaxed);
}

/// Waits before this thread returns to the interpreter.
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

/// `true` with one processor, where the other thread cannot run now.
fn is_alone() -> bool {
    static ALONE: OnceLock<bool> = OnceLock::new();
    *ALONE.get_or_init(|| available_parallelism().is_ok_and(|processors| processors.get() == 1))
}
