//! The signals that end a run in order.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGHUP's number, the same on all architectures.
const HANGUP: i32 = 1;

/// A set of signals that are waited for instead of doing what they do by default.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(i32, Signal)>,
}

impl Signals {
    /// Handles these signals from here on. To be called inside the runtime.
    ///
    /// A hang-up that was being ignored stays ignored: that is how `nohup` asks for a run that
    /// outlives its terminal.
    pub(crate) fn new(numbers: impl IntoIterator<Item = i32>) -> io::Result<Self> {
        let mut streams: Vec<(i32, Signal)> = Vec::new();
        for number in numbers {
            let known = streams.iter().any(|(known, _)| *known == number);
            if known || (number == HANGUP && is_ignored(HANGUP)) {
                continue;
            }
            streams.push((number, signal(SignalKind::from_raw(number))?));
        }
        Ok(Self { streams })
    }

    /// Waits for the next one. May be dropped while waiting.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            for (number, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Whether this process ignores a signal, as it was told by whoever started it.
pub(crate) fn is_ignored(number: i32) -> bool {
    (1..=64).contains(&number) && ignored_signals() & (1 << (number - 1)) != 0
}

/// The mask of signals that this process ignores; none if the kernel does not say.
fn ignored_signals() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find(|line| line.starts_with("SigIgn:"))?;
            u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
        })
        .unwrap_or(0)
}
