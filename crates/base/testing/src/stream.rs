//! Output of a program.

use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::DEADLINE;

/// One output stream of a program.
/// A thread reads the stream, so that the program never waits for the test.
pub struct Stream(Mutex<Output>);

struct Output {
    chunks: Receiver<Vec<u8>>,
    bytes: Vec<u8>,
    /// Index of the first byte of the next line.
    next_line: usize,
}

/// Reason why there is no line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoLine {
    /// No line was written within the limit.
    Timeout,
    /// The stream has ended.
    End,
}

impl Stream {
    /// Creates a stream, and a thread that reads `source`.
    pub fn new(mut source: impl Read + Send + 'static) -> Self {
        let (sender, chunks) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(length @ 1..) = source.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self::of(chunks)
    }

    pub(crate) fn empty() -> Self {
        Self::of(channel().1)
    }

    fn of(chunks: Receiver<Vec<u8>>) -> Self {
        Self(Mutex::new(Output {
            chunks,
            bytes: Vec::new(),
            next_line: 0,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Output> {
        self.0.lock().unwrap()
    }

    /// Returns all text that has been read until now.
    pub fn so_far(&self) -> String {
        let mut output = self.lock();
        while let Ok(chunk) = output.chunks.try_recv() {
            output.bytes.extend(chunk);
        }
        output.text()
    }

    /// Waits until all processes have closed the stream, and returns all text.
    #[track_caller]
    pub fn all(&self) -> String {
        let mut output = self.lock();
        let deadline = Instant::now() + DEADLINE;
        loop {
            match output.read(deadline) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return output.text(),
                Err(RecvTimeoutError::Timeout) => panic!("a process still holds the output open"),
            }
        }
    }

    /// Waits until this text has been written `times` times.
    #[track_caller]
    pub fn await_text(&self, text: &str, times: usize) {
        let mut output = self.lock();
        let deadline = Instant::now() + DEADLINE;
        while output.text().matches(text).count() < times {
            if let Err(reason) = output.read(deadline) {
                panic!(
                    "{text:?} was not written {times} times ({reason}), but:\n{}",
                    output.text()
                );
            }
        }
    }

    /// Returns the next line, without its line end.
    pub fn line_within(&self, limit: Duration) -> Result<String, NoLine> {
        let mut output = self.lock();
        let deadline = Instant::now() + limit;
        loop {
            if let Some(line) = output.line() {
                return Ok(line);
            }
            match output.read(deadline) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => return Err(NoLine::Timeout),
                // The last line may have no line end.
                Err(RecvTimeoutError::Disconnected) => {
                    return output.last_line().ok_or(NoLine::End);
                }
            }
        }
    }

    /// Waits for a line with this beginning, and returns the rest of the line.
    #[track_caller]
    pub fn await_line(&self, beginning: &str) -> String {
        loop {
            match self.line_within(DEADLINE) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(beginning) {
                        return rest.to_owned();
                    }
                }
                Err(reason) => panic!(
                    "no line {beginning:?} ({reason:?}), but:\n{}",
                    self.so_far()
                ),
            }
        }
    }
}

impl Output {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn read(&mut self, deadline: Instant) -> Result<(), RecvTimeoutError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let chunk = self.chunks.recv_timeout(left)?;
        self.bytes.extend(chunk);
        Ok(())
    }

    fn line(&mut self) -> Option<String> {
        let rest = &self.bytes[self.next_line..];
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        self.next_line += end + 1;
        Some(line)
    }

    fn last_line(&mut self) -> Option<String> {
        let rest = &self.bytes[self.next_line..];
        let line = (!rest.is_empty()).then(|| String::from_utf8_lossy(rest).into_owned());
        self.next_line = self.bytes.len();
        line
    }
}
