//! Whose turn it is to have a thread: functions that block, so many at a time, the others in order.
//!
//! Threads that read large parts do not stand in this line: a function that waits for a reply holds its
//! thread until the reply has been read.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::Mutex;

/// What is done on a thread.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Functions that have a thread, and those that wait for one.
pub(crate) struct Turns {
    most: usize,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    running: usize,
    waiting: VecDeque<Work>,
    /// Nobody has a turn any more.
    closed: bool,
}

impl Turns {
    /// So many at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            line: Mutex::default(),
        }
    }

    /// The work again if it is to have a thread now; it waits otherwise.
    pub(crate) fn enter(&self, work: Work) -> Option<Work> {
        let mut line = self.line.lock();
        if line.closed || line.running < self.most {
            line.running += 1;
            return Some(work);
        }
        line.waiting.push_back(work);
        None
    }

    /// Does the work, and then what waits.
    pub(crate) fn work(&self, first: Work) {
        let mut next = Some(first);
        while let Some(work) = next {
            // A panic was reported when it happened; it must not take the turns of others.
            let _ = catch_unwind(AssertUnwindSafe(work));
            let mut line = self.line.lock();
            next = line.waiting.pop_front();
            line.running -= usize::from(next.is_none());
        }
    }

    /// What waits is not done any more.
    pub(crate) fn close(&self) {
        let mut line = self.line.lock();
        line.closed = true;
        let waiting = std::mem::take(&mut line.waiting);
        drop(line);
        // Without the lock: those who wait for its results are told.
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn so_many_run_and_the_others_follow_in_order_whoever_panics() {
        let turns = Turns::new(2);
        let done = Arc::new(Mutex::new(Vec::new()));
        let work = |number: u32| -> Work {
            let done = Arc::clone(&done);
            Box::new(move || {
                done.lock().push(number);
                assert_ne!(number, 2, "one that panics");
            })
        };
        let first = turns.enter(work(0)).unwrap();
        let second = turns.enter(work(1)).unwrap();
        for number in 2..5 {
            assert!(turns.enter(work(number)).is_none());
        }
        turns.work(first);
        assert_eq!(*done.lock(), [0, 2, 3, 4]);
        assert!(turns.enter(work(5)).is_some(), "one has ended");
        assert!(turns.enter(work(6)).is_none());
        turns.work(second);
        assert_eq!(*done.lock(), [0, 2, 3, 4, 1, 6]);
    }

    #[test]
    fn what_waits_at_the_end_is_dropped() {
        let turns = Turns::new(1);
        let counted = Arc::new(AtomicU32::new(0));
        let work = || -> Work {
            let counted = Arc::clone(&counted);
            Box::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            })
        };
        let first = turns.enter(work()).unwrap();
        assert!(turns.enter(work()).is_none());
        turns.close();
        turns.work(first);
        assert_eq!(counted.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
