//! Handles to asynchronous operations, and their completing side.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdzv_lock::{Condvar, Mutex};

use crate::error::{CollectiveError, Result};

type OnDone = Box<dyn FnOnce() + Send>;

/// Handle to an asynchronous operation, which returns its result.
///
/// The operation is a collective operation in a [`GroupQueue`](crate::GroupQueue), or a message
/// ([`PointToPoint`](crate::PointToPoint)). Dropping the handle does not cancel the operation.
///
/// ```
/// use std::time::Duration;
/// use rdzv_collective::{GroupQueue, ProcessGroup};
///
/// let store = rdzv_store::HashStore::new();
/// let group = ProcessGroup::new(&store, 0, 1, Duration::from_secs(60))?;
/// let mut queue = GroupQueue::new(group);
/// let work = queue.submit(ProcessGroup::barrier)?;
/// work.on_done(|| println!("ended"));
/// assert!(work.wait_timeout(Duration::from_secs(60)), "a barrier of one rank ends immediately");
/// work.wait()?;
/// # Ok::<(), rdzv_collective::CollectiveError>(())
/// ```
#[must_use = "the operation may fail, and only its `Work` reports the error"]
pub struct Work<R>(Arc<Shared<R>>);

/// Completing side of the work, used once.
///
/// Dropping it completes the work with an error.
pub(crate) struct Completer<R>(Option<Arc<Shared<R>>>);

struct Shared<R> {
    state: Mutex<State<R>>,
    ended: Condvar,
}

struct State<R> {
    ended: bool,
    /// Result, until it is taken.
    outcome: Option<Result<R>>,
    on_done: Vec<OnDone>,
}

/// Creates work and its completing side.
pub(crate) fn work<R>() -> (Completer<R>, Work<R>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            ended: false,
            outcome: None,
            on_done: Vec::new(),
        }),
        ended: Condvar::new(),
    });
    (Completer(Some(Arc::clone(&shared))), Work(shared))
}

impl<R> Work<R> {
    /// Waits for the operation to finish.
    ///
    /// The timeout of the operation limits this. In a queue, the timeout starts when the earlier
    /// operations have finished.
    ///
    /// # Errors
    ///
    /// Returns the error of the operation, or [`CollectiveError::Argument`] if the result was
    /// [taken](Self::take) earlier.
    pub fn wait(self) -> Result<R> {
        let mut state = self.0.state.lock();
        while !state.ended {
            state = self.0.ended.wait(state);
        }
        let taken = || CollectiveError::Argument("the result was already taken".to_owned());
        state.outcome.take().ok_or_else(taken)?
    }

    /// Waits up to `timeout` for the operation to finish.
    ///
    /// Returns `true` if the operation has finished, successfully or not. Otherwise it continues.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        let state = self.0.state.lock();
        let ended = &self.0.ended;
        let (state, _) = ended.wait_timeout_while(state, timeout, |state| !state.ended);
        state.ended
    }

    /// `true` if the operation has finished, successfully or not.
    pub fn is_done(&self) -> bool {
        self.0.state.lock().ended
    }

    /// Takes the result once the operation has finished.
    ///
    /// `None` before that, and after the result was taken.
    pub fn take(&self) -> Option<Result<R>> {
        self.0.state.lock().outcome.take()
    }

    /// Registers a function to call once the operation has finished.
    ///
    /// The function is called after success and after failure, and no lock is held. If the
    /// operation has already finished, the function is called immediately. Otherwise the thread
    /// that ends the operation calls it, so the function must not wait for another operation of
    /// that thread. Several functions are called in the order of their registration.
    pub fn on_done(&self, call: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        if !state.ended {
            state.on_done.push(Box::new(call));
            return;
        }
        drop(state);
        call();
    }
}

impl<R> fmt::Debug for Work<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Work");
        shown.field("is_done", &self.is_done()).finish()
    }
}

impl<R> Completer<R> {
    pub(crate) fn complete(mut self, outcome: Result<R>) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Result<R>) {
        let Some(shared) = self.0.take() else { return };
        let on_done = {
            let mut state = shared.state.lock();
            state.ended = true;
            state.outcome = Some(outcome);
            std::mem::take(&mut state.on_done)
        };
        shared.ended.notify_all();
        for call in on_done {
            call();
        }
    }
}

impl<R> Drop for Completer<R> {
    fn drop(&mut self) {
        self.end(Err(panicked()));
    }
}

/// Returns the error of work that no thread can complete.
pub(crate) fn panicked() -> CollectiveError {
    CollectiveError::broken("the thread that runs its operations panicked")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn functions_are_called_exactly_once_however_the_operation_ends() {
        for outcome in [Some(Ok(7)), Some(Err(panicked())), None] {
            let (completer, work) = work::<u32>();
            let calls = Arc::new(AtomicU32::new(0));
            let count = || {
                let calls = Arc::clone(&calls);
                move || {
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            };
            work.on_done(count());
            work.on_done(count());
            assert!(!work.is_done() && !work.wait_timeout(Duration::ZERO));
            assert_eq!(calls.load(Ordering::Relaxed), 0);
            let succeeds = matches!(outcome, Some(Ok(_)));
            match outcome {
                Some(outcome) => completer.complete(outcome),
                None => drop(completer),
            }
            assert_eq!(calls.load(Ordering::Relaxed), 2);
            work.on_done(count());
            assert_eq!(calls.load(Ordering::Relaxed), 3);
            assert!(work.is_done());
            let taken = work.take().expect("it has ended");
            assert_eq!(taken.is_ok(), succeeds);
            assert!(work.is_done() && work.take().is_none());
            assert!(matches!(work.wait(), Err(CollectiveError::Argument(_))));
        }
    }

    #[test]
    fn a_function_can_use_the_work_that_has_ended() {
        let (completer, work) = work::<u32>();
        let work = Arc::new(work);
        let (seen, inside) = (Arc::new(AtomicU32::new(0)), Arc::clone(&work));
        let count = Arc::clone(&seen);
        work.on_done(move || {
            assert!(inside.is_done());
            inside.on_done(move || {
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        thread::spawn(move || completer.complete(Ok(1)))
            .join()
            .unwrap();
        assert!(work.wait_timeout(Duration::from_secs(60)));
        assert_eq!(seen.load(Ordering::Relaxed), 1);
    }
}
