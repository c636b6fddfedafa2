//! Capture of workers' stderr.
//!
//! This module copies stderr to the agent's own stderr, and retains the end of it for the failure
//! report.
//!
//! A worker whose stderr is neither redirected nor teed shares the agent's stderr. If that is a
//! terminal, the worker inherits it or gets a separate pseudo-terminal, because workers check for a
//! terminal. Otherwise (a file, a pipe, a job's log) each worker gets a separate pipe. One thread
//! copies the output:
//!
//! ```text
//!   worker 0 ── pipe ──┐
//!   worker 1 ── pipe ──┼─► thread ──► the agent's stderr     bytes unchanged, no prefix
//!                      └─► the last 16 KiB of each
//! ```
//!
//! For a worker the only difference is the kind of its stderr: a pipe (as with `| tee`), or a
//! terminal in raw mode without a keyboard. Its stdin and stdout are those of the agent.
//!
//! If the reader of the agent's stderr stalls, the worker stalls about 64 KiB later, as it would
//! without the pipe. If the reader closes the stream, the thread closes the pipes too. A worker
//! never outlives the agent, so it never writes into a pipe without a reader.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use rdzv_console::live::strip;
use rdzv_core::rank::LocalRank;
use rdzv_event::{Mailbox, Sender, mailbox};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::console::write_all;
use super::last_lines::last_lines;
use super::pty::{self, Ends};

/// Number of bytes that are retained from the end of a worker's stderr.
const RETAINED: usize = 16 << 10;

/// Size of one read and write: the capacity of a pipe.
const BUFFER: usize = 64 << 10;

/// Limit on how long a log line about a failure waits for the worker's output.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(50);

/// End of each worker's stderr.
#[derive(Debug, Clone, Default)]
pub(super) struct Tails(Arc<Mutex<BTreeMap<LocalRank, VecDeque<u8>>>>);

impl Tails {
    /// Forgets the output of an earlier worker with this local rank.
    pub(super) fn begin(&self, local_rank: LocalRank) {
        self.lock().insert(local_rank, VecDeque::new());
    }

    /// Adds output of a worker.
    pub(super) fn retain(&self, local_rank: LocalRank, bytes: &[u8]) {
        let mut tails = self.lock();
        let tail = tails.entry(local_rank).or_default();
        tail.extend(&bytes[bytes.len().saturating_sub(RETAINED)..]);
        let surplus = tail.len().saturating_sub(RETAINED);
        tail.drain(..surplus);
    }

    /// Returns the end of a worker's output; `true` if there was more before it.
    pub(super) fn of(&self, local_rank: LocalRank) -> (Vec<u8>, bool) {
        let bytes: Vec<u8> = match self.lock().get(&local_rank) {
            Some(tail) => tail.iter().copied().collect(),
            None => Vec::new(),
        };
        let cut = bytes.len() >= RETAINED;
        (bytes, cut)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LocalRank, VecDeque<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Command that the agent sends to the copying thread.
enum Command {
    Add(LocalRank, Arc<OwnedFd>),
    /// Dropped once all output received before this command has been copied.
    Drain(Box<dyn Send>),
}

/// Handle to the copying thread, for the agent.
#[derive(Debug, Default)]
pub(crate) struct StderrCapture {
    /// Sender for commands. Dropping it makes the thread exit.
    thread: Option<Sender<Command>>,
    tails: Tails,
    /// Terminals among the workers' streams.
    terminals: Vec<Weak<OwnedFd>>,
    /// Number of bytes that were read from workers but not yet written.
    unshown: Arc<AtomicU64>,
}

impl StderrCapture {
    /// Creates a pipe or a pseudo-terminal for a worker's stderr.
    /// If the agent's stderr is a terminal, this creates a pseudo-terminal, or nothing without
    /// `terminal`. `None` means that the worker inherits the agent's stderr.
    pub(crate) fn stderr(&mut self, local_rank: LocalRank, terminal: bool) -> Option<OwnedFd> {
        let ends = match io::stderr().is_terminal() {
            true if !terminal => return None,
            true => pty::open_terminal(pty::size()),
            false => pty::open_pipe(),
        };
        ends.and_then(|ends| self.add(local_rank, ends))
            .inspect_err(|error| tracing::debug!("stderr is not captured: {error}"))
            .ok()
    }

    fn add(&mut self, local_rank: LocalRank, ends: Ends) -> io::Result<OwnedFd> {
        let Ends { reader, writer } = ends;
        let reader = Arc::new(reader);
        if writer.is_terminal() {
            self.terminals
                .retain(|terminal| terminal.strong_count() > 0);
            self.terminals.push(Arc::downgrade(&reader));
        }
        let thread = match &mut self.thread {
            Some(thread) => thread,
            none => none.insert(start(self.tails.clone(), Arc::clone(&self.unshown))?),
        };
        thread.send(Command::Add(local_rank, reader));
        Ok(writer)
    }

    /// Updates the size of the workers' terminals, which may have changed.
    pub(crate) fn resized(&self) {
        let size = pty::size();
        for terminal in self.terminals.iter().filter_map(Weak::upgrade) {
            // A terminal that is about to close does not matter.
            let _ = pty::resize(&*terminal, size);
        }
    }

    /// Waits until all output of exited workers is copied.
    /// Cancel-safe: the caller may drop the future.
    pub(crate) async fn drained(&self) {
        let (answer, drained) = oneshot::channel::<()>();
        self.drain(answer);
        let _ = drained.await;
    }

    /// Returns the number of bytes that were read from workers but not yet written.
    pub(crate) fn unshown(&self) -> u64 {
        self.unshown.load(Ordering::Relaxed)
    }

    /// Blocks until all output is copied, with a short timeout.
    /// Log lines about a worker's exit then follow that worker's output.
    pub(crate) fn flush(&self) {
        let (answer, flushed) = channel::<()>();
        self.drain(answer);
        let _ = flushed.recv_timeout(FLUSH_TIMEOUT);
    }

    /// Drops `answer` once all output until now is copied.
    /// Without a thread, this happens immediately.
    fn drain(&self, answer: impl Send + 'static) {
        if let Some(thread) = &self.thread {
            thread.send(Command::Drain(Box::new(answer)));
        }
    }

    /// Returns at most `most` last lines of a worker's stderr, oldest first.
    pub(crate) fn tail(&self, local_rank: LocalRank, most: usize) -> Vec<String> {
        let (bytes, cut) = self.tails.of(local_rank);
        if self.terminals.is_empty() {
            last_lines(&bytes, cut, most)
        } else {
            last_lines(strip(&bytes).as_bytes(), cut, most)
        }
    }
}

fn start(tails: Tails, unshown: Arc<AtomicU64>) -> io::Result<Sender<Command>> {
    let (commands, mailbox) = mailbox()?;
    let copier = Copier {
        commands: mailbox,
        pipes: Vec::new(),
        tails,
        unshown,
    };
    thread::Builder::new()
        .name("stderr".to_owned())
        .stack_size(128 << 10)
        .spawn(move || copier.run())?;
    Ok(commands)
}

/// State of the thread.
struct Copier {
    commands: Mailbox<Command>,
    pipes: Vec<(LocalRank, Arc<OwnedFd>)>,
    tails: Tails,
    unshown: Arc<AtomicU64>,
}

impl Copier {
    fn run(mut self) {
        let mut buffer = vec![0; BUFFER];
        loop {
            let mut waited = vec![PollFd::new(&self.commands, PollFlags::IN)];
            waited.extend(
                self.pipes
                    .iter()
                    .map(|(_, pipe)| PollFd::new(&**pipe, PollFlags::IN)),
            );
            let _ = poll(&mut waited, None);
            let ready: Vec<bool> = waited[1..]
                .iter()
                .map(|waited| !waited.revents().is_empty())
                .collect();
            drop(waited);
            self.commands.drain();
            let mut ready = ready.into_iter();
            self.copy(&mut buffer, || ready.next().unwrap_or(false));
            loop {
                match self.commands.try_recv() {
                    Ok(Command::Add(local_rank, pipe)) => {
                        self.tails.begin(local_rank);
                        self.pipes.push((local_rank, pipe));
                    }
                    Ok(Command::Drain(answer)) => {
                        while self.copy(&mut buffer, || true) {}
                        drop(answer);
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    /// Copies up to one buffer of each pipe for which `wanted` returns `true`.
    /// Calls `wanted` for each pipe in order. Returns `false` if there was nothing to copy.
    fn copy(&mut self, buffer: &mut [u8], mut wanted: impl FnMut() -> bool) -> bool {
        let (tails, unshown) = (&self.tails, &self.unshown);
        let mut copied = false;
        let mut reader_is_gone = false;
        self.pipes.retain(|(local_rank, pipe)| {
            if !wanted() {
                return true;
            }
            match rustix::io::read(&**pipe, &mut *buffer) {
                Ok(0) => false,
                Ok(read) => {
                    copied = true;
                    tails.retain(*local_rank, &buffer[..read]);
                    unshown.fetch_add(read as u64, Ordering::Relaxed);
                    // The worker must not notice any other error (a full disk, for example).
                    let written = write_all(rustix::stdio::stderr(), &buffer[..read]);
                    reader_is_gone |= written == Err(Errno::PIPE);
                    unshown.fetch_sub(read as u64, Ordering::Relaxed);
                    true
                }
                Err(Errno::AGAIN | Errno::INTR) => true,
                Err(_) => false,
            }
        });
        if reader_is_gone {
            // Workers that still write get the same error as without the pipe.
            self.pipes.clear();
        }
        copied
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    /// Writes to worker 0's stderr, closes it, and waits for the copy of the text.
    fn captured(text: &[u8]) -> StderrCapture {
        let mut capture = StderrCapture::default();
        let Ends { reader, writer } = pty::open_pipe().unwrap();
        let line = start(capture.tails.clone(), Arc::default()).unwrap();
        line.send(Command::Add(LocalRank(0), Arc::new(reader)));
        capture.thread = Some(line);
        let mut rest = text;
        while !rest.is_empty() {
            let written = rustix::io::write(&writer, rest).unwrap();
            rest = &rest[written..];
        }
        drop(writer);
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(capture.drained());
        capture
    }

    #[test]
    fn the_end_of_what_was_written_is_kept() {
        let text: String = (0..5_000).map(|line| format!("line {line}\n")).collect();
        let lines = captured(text.as_bytes()).tail(LocalRank(0), 2_000);
        assert_eq!(lines.last().map(String::as_str), Some("line 4999"));
        assert!(
            lines.iter().all(|line| line.starts_with("line ")),
            "{lines:?}"
        );
        assert!((1_000..2_000).contains(&lines.len()), "{}", lines.len());
    }

    #[test]
    fn few_lines_are_all_there_and_of_a_progress_bar_the_last_state() {
        let capture = captured(b"a\n10%\r20%\nlast");
        assert_eq!(capture.tail(LocalRank(0), 9), ["a", "20%", "last"]);
        assert_eq!(capture.tail(LocalRank(0), 1), ["last"]);
        assert!(capture.tail(LocalRank(1), 1).is_empty());
    }
}
