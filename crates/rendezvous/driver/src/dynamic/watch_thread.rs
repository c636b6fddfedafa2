//! A thread that waits in a store until nobody is interested any more.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdzv_store::Breaker;

/// The thread; it ends soon after this is dropped.
pub(super) struct WatchThread {
    over: Arc<AtomicBool>,
    breaker: Option<Breaker>,
}

impl WatchThread {
    /// Runs `watch`, whose argument is set when it is over; `breaker` ends a wait that is under way.
    pub(super) fn start(
        name: &str,
        breaker: Option<Breaker>,
        watch: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&over);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || watch(&watched))?;
        Ok(Self { over, breaker })
    }
}

impl Drop for WatchThread {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(breaker) = &self.breaker {
            breaker();
        }
    }
}
