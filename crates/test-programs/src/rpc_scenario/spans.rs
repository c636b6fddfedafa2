//! Spans of calls, as `tracing` reports them.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;

/// Lines of the spans that have ended.
#[derive(Clone, Default)]
pub(crate) struct Spans(Arc<(Mutex<Vec<String>>, Condvar)>);

impl io::Write for Spans {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if text.contains("rpc.") {
            let mut lines = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push(text.trim().to_owned());
            self.0.1.notify_all();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Spans {
    /// Records the spans of RPC in this process from now on.
    pub(crate) fn record(&self) {
        let spans = self.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(move || spans.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        let installed = tracing::subscriber::set_global_default(subscriber);
        installed.expect("a test asks for it once");
    }

    /// Returns the ended spans, when there are `count` of them or the time is over.
    pub(crate) fn wait_for(&self, count: usize, within: Duration) -> Vec<String> {
        let few = |lines: &mut Vec<String>| lines.len() < count;
        let lines = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(lines, within, few);
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}
