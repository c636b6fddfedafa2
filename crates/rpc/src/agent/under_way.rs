//! The async functions that have begun and not ended, and the moment that an agent leaves them when it
//! stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::watch;

/// How long after they were told async functions are dropped where they wait. Nobody waits for that.
const GRACE: Duration = Duration::from_secs(1);

/// Counts async functions.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Arc<watch::Sender<usize>>);

/// A function that counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<watch::Sender<usize>>);

impl UnderWay {
    /// One more has begun.
    pub(crate) fn begin(&self) -> Counted {
        self.0.send_modify(|count| *count += 1);
        Counted(Arc::clone(&self.0))
    }

    /// Ends the threads that the functions run on, when those that were told are over or have had their
    /// time. It is the runtime itself that waits.
    pub(crate) fn end(&self, runtime: Runtime) {
        if *self.0.borrow() == 0 {
            return runtime.shutdown_background();
        }
        let mut count = self.0.subscribe();
        let handle = runtime.handle().clone();
        handle.spawn(async move {
            // Whether they are over or not, this is the end.
            let _ = tokio::time::timeout(GRACE, count.wait_for(|count| *count == 0)).await;
            runtime.shutdown_background();
        });
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
