//! The kind of code that a thread runs, and the trace that it belongs to.

use std::cell::Cell;

/// What kind of code this thread runs just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The application's own.
    Application,
    /// A step of an async function that was called: it must not block.
    Async,
    /// A blocking function that was called: it has a thread of its own.
    Blocking,
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Application) };
    static TRACE: Cell<u128> = const { Cell::new(0) };
}

/// Where the calling code is.
pub(crate) fn place() -> Place {
    PLACE.get()
}

/// The trace that the calling code belongs to; 0 if to none.
pub(crate) fn trace() -> u128 {
    TRACE.get()
}

/// Runs code of a function that was called.
pub(crate) fn inside<T>(place: Place, trace: u128, run: impl FnOnce() -> T) -> T {
    /// Puts back what was before, also after a panic.
    struct Restore(Place, u128);
    impl Drop for Restore {
        fn drop(&mut self) {
            PLACE.set(self.0);
            TRACE.set(self.1);
        }
    }
    let _restore = Restore(PLACE.replace(place), TRACE.replace(trace));
    run()
}
