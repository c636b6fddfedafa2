//! Kind of code that a thread runs, and the trace of that code.

use std::cell::Cell;

/// Kind of code that this thread currently runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodeKind {
    /// Application code outside of calls.
    Application,
    /// A step of an async function that serves a call; it must not block.
    Async,
    /// A blocking function that serves a call, on a separate thread.
    Blocking,
}

thread_local! {
    static CODE_KIND: Cell<CodeKind> = const { Cell::new(CodeKind::Application) };
    static TRACE: Cell<u128> = const { Cell::new(0) };
}

pub(crate) fn code_kind() -> CodeKind {
    CODE_KIND.get()
}

/// Returns the trace id of the calling code; 0 if it has none.
pub(crate) fn trace() -> u128 {
    TRACE.get()
}

/// Runs code that serves a call.
pub(crate) fn inside<T>(code_kind: CodeKind, trace: u128, run: impl FnOnce() -> T) -> T {
    /// Restores the previous values, also after a panic.
    struct Restore(CodeKind, u128);
    impl Drop for Restore {
        fn drop(&mut self) {
            CODE_KIND.set(self.0);
            TRACE.set(self.1);
        }
    }
    let _restore = Restore(CODE_KIND.replace(code_kind), TRACE.replace(trace));
    run()
}
