//! A call that waits in a store for as long as its owner wants.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdzv_store::Breaker;

use crate::runtime::beside;

/// The watch, which ends soon after this is dropped.
pub(super) struct Watch {
    over: Arc<AtomicBool>,
    breaker: Option<Breaker>,
}

impl Watch {
    /// Runs `watch`, whose argument is set when it is over; `breaker` ends a wait that is under way.
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
