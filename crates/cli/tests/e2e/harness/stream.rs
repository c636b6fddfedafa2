//! Output as it comes.

use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

/// One output stream, read by a thread of its own.
pub(crate) struct Stream {
    chunks: Receiver<Vec<u8>>,
    seen: Vec<u8>,
}

impl Stream {
    pub(super) fn of(mut source: impl Read + Send + 'static) -> Self {
        let (sender, chunks) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(length @ 1..) = source.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            chunks,
            seen: Vec::new(),
        }
    }

    /// What has been read.
    pub(crate) fn so_far(&mut self) -> String {
        while let Ok(chunk) = self.chunks.try_recv() {
            self.seen.extend(chunk);
        }
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// Waits until this text has been written so many times.
    #[track_caller]
    pub(crate) fn await_text(&mut self, text: &str, times: usize) {
        let until = Instant::now() + super::DEADLINE;
        while String::from_utf8_lossy(&self.seen).matches(text).count() < times {
            match self.chunks.recv_timeout(until - Instant::now()) {
                Ok(chunk) => self.seen.extend(chunk),
                Err(reason) => panic!(
                    "{text:?} was not written {times} times ({reason}), but:\n{}",
                    String::from_utf8_lossy(&self.seen)
                ),
            }
        }
    }

    pub(super) fn all(&mut self) -> String {
        let until = Instant::now() + super::DEADLINE;
        loop {
            match self.chunks.recv_timeout(until - Instant::now()) {
                Ok(chunk) => self.seen.extend(chunk),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("somebody still holds the output open"),
            }
        }
        String::from_utf8_lossy(&self.seen).into_owned()
    }
}
