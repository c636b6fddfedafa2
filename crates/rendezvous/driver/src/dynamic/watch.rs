//! Call that waits in a store until its owner ends it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdzv_store::Breaker;

use crate::runtime::beside;

/// Handle of the call, which ends soon after a drop of the handle.
pub(super) struct Watch {
    over: Arc<AtomicBool>,
    breaker: Option<Breaker>,
}

impl Watch {
    /// Runs `watch`, and sets its argument to `true` when the handle is dropped.
    ///
    /// `breaker` ends a running wait.
    pub(super) fn start(
        breaker: Option<Breaker>,
        watch: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&over);
        beside(move || watch(&watched))?;
        Ok(Self { over, breaker })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(breaker) = &self.breaker {
            breaker();
        }
    }
}
