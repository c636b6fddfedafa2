//! Capture of workers' output that goes to no file.
//!
//! This module copies the output to the agent's own stdout and stderr. It retains the end of stderr
//! for the failure report.
//!
//! A worker whose output is neither redirected nor teed shares the streams of the agent. If such a
//! stream is a terminal, the worker inherits it, or gets a separate pseudo-terminal for stderr,
//! because workers check for a terminal. Otherwise (a file, a pipe, a job's log) each worker gets a
//! separate pipe, if the plan captures the stream. One thread for each stream of the agent copies
//! the output:
//!
//! ```text
//!   worker 0 ── pipe ──┐
//!   worker 1 ── pipe ──┼─► thread ──► the agent's stream     no conversion, no prefix
//!                      └─► the last 16 KiB of each stderr
//! ```
//!
//! With [`LogPlan::whole_lines`], the thread writes whole lines. It writes the beginning of an
//! unfinished or very long line after 150 ms or 64 KiB. If another stream writes in between, the
//! thread repeats the beginning of a short line before the rest. Bytes of a pseudo-terminal do not
//! wait for the end of a line. Without that setting, workers inherit stdout, and bytes of stderr
//! are copied as they come.
//!
//! For a worker the only difference is the kind of its streams: a pipe (as with `| tee`), or a
//! terminal in raw mode without a keyboard.
//!
//! If the reader of the agent's stream stalls, the worker stalls about 64 KiB later (up to 1 MiB
//! after a flood of output), as it would without the pipe. If the reader closes the stream, the
//! thread closes the pipes too. Workers die with the agent, so no worker continues without its
//! reader.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use memchr::memrchr;
use rdzv_console::live::strip;
use rdzv_core::rank::LocalRank;
use rdzv_event::{Mailbox, Sender, mailbox, poll};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::pipe::fcntl_setpipe_size;
use tokio::sync::oneshot;

use super::console::{Batch, Console, FLOODED_PIPE, Target, write_all};
use super::last_lines::last_lines;
use super::line_assembler::{LONGEST_LINE, Piece};
use super::log_reader::{HOLD, LONG_LINE};
use super::pty::{self, Ends};
use super::streams::WorkerStreams;
use crate::config::LogPlan;

/// Number of bytes that are retained from the end of a worker's stderr.
const RETAINED: usize = 16 << 10;

/// Maximum size of one read.
const BUFFER: usize = 128 << 10;

/// Capacity of a pipe at first; a read of this size is a sign of a flood.
const PIPE: usize = 64 << 10;

/// Number below those of all captured streams, and above those of files.
const FIRST: u64 = 1 << 63;

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

    pub(super) fn retain(&self, local_rank: LocalRank, bytes: &[u8]) {
        let mut tails = self.lock();
        let tail = tails.entry(local_rank).or_default();
        tail.extend(&bytes[bytes.len().saturating_sub(RETAINED)..]);
        let surplus = tail.len().saturating_sub(RETAINED);
        tail.drain(..surplus);
    }

    /// Returns the end of a worker's output; `true` if there may be more before it.
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

/// Command from the agent to a copying thread.
enum Command {
    Add(Stream),
    /// Dropped once all output received before this command has been copied.
    /// `true` if that includes lines without an end.
    Drain(Arc<dyn Send + Sync>, bool),
}

/// Handle to the copying threads, for the agent.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    /// Senders for commands, one if stdout and stderr are the same file.
    /// Dropping them makes the threads exit.
    threads: BTreeMap<Target, Sender<Command>>,
    tails: Tails,
    /// Terminals among the workers' streams.
    terminals: Vec<Weak<OwnedFd>>,
    /// Number of streams that were ever captured.
    streams: u64,
    /// Number of bytes that were read from workers but not yet written.
    unshown: Arc<AtomicU64>,
}

impl Capture {
    /// Creates a pipe or pseudo-terminal for each stream that the plan captures.
    /// The worker inherits the other streams that have no file.
    pub(crate) fn attach(
        &mut self,
        local_rank: LocalRank,
        plan: &LogPlan,
        streams: &mut WorkerStreams,
    ) {
        if streams.stdout.is_none() && plan.whole_lines && is_shared(io::stdout().as_fd()) {
            streams.stdout = self.open(local_rank, Target::Stdout, plan);
        }
        let is_terminal = io::stderr().is_terminal();
        if streams.stderr.is_none()
            && plan.capture_stderr
            && (!is_terminal || plan.capture_terminal)
        {
            streams.stderr = self.open(local_rank, Target::Stderr, plan);
        }
    }

    fn open(&mut self, local_rank: LocalRank, target: Target, plan: &LogPlan) -> Option<OwnedFd> {
        let ends = match target {
            Target::Stderr if io::stderr().is_terminal() => pty::open_terminal(pty::size()),
            _ => pty::open_pipe(),
        };
        ends.and_then(|ends| self.add(local_rank, target, ends, plan.whole_lines))
            .inspect_err(|error| tracing::debug!("cannot capture {}: {error}", target.name()))
            .ok()
    }

    fn add(
        &mut self,
        local_rank: LocalRank,
        target: Target,
        ends: Ends,
        whole_lines: bool,
    ) -> io::Result<OwnedFd> {
        let Ends { reader, writer } = ends;
        let (reader, is_terminal) = (Arc::new(reader), writer.is_terminal());
        if is_terminal {
            self.terminals
                .retain(|terminal| terminal.strong_count() > 0);
            self.terminals.push(Arc::downgrade(&reader));
        }
        let is_one = Console::get().is_one_file();
        let file = if is_one { Target::Stdout } else { target };
        if !self.threads.contains_key(&file) {
            let thread = start(file, self.tails.clone(), Arc::clone(&self.unshown))?;
            self.threads.insert(file, thread);
        }
        self.streams += 1;
        let stream = Stream {
            id: FIRST + self.streams,
            local_rank,
            target,
            pipe: reader,
            is_shown_directly: !whole_lines,
            holds_lines: whole_lines && !is_terminal,
            pending: Vec::new(),
            begun: None,
            flush_at: None,
            long_since: None,
            last_read: Instant::now(),
            is_flooded: false,
        };
        self.threads[&file].send(Command::Add(stream));
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
        self.drain(answer, true);
        let _ = drained.await;
    }

    pub(crate) fn unshown(&self) -> u64 {
        self.unshown.load(Ordering::Relaxed)
    }

    /// Blocks until all output is copied, with a short timeout.
    /// Log lines about a worker's exit then follow that worker's output.
    pub(crate) fn flush(&self) {
        let (answer, flushed) = channel::<()>();
        self.drain(answer, false);
        let _ = flushed.recv_timeout(FLUSH_TIMEOUT);
    }

    /// Drops `answer` once all output until now is copied.
    /// Without a thread, this happens immediately.
    fn drain(&self, answer: impl Send + Sync + 'static, with_unfinished: bool) {
        let answer = Arc::new(answer);
        for thread in self.threads.values() {
            thread.send(Command::Drain(answer.clone(), with_unfinished));
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

/// Returns `true` if lines of several writers can meet in this file.
/// A device such as /dev/null keeps no lines, and a terminal stays the worker's terminal.
fn is_shared(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|metadata| {
        matches!(
            FileType::from_raw_mode(metadata.st_mode),
            FileType::Fifo | FileType::Socket | FileType::RegularFile
        )
    })
}

fn start(file: Target, tails: Tails, unshown: Arc<AtomicU64>) -> io::Result<Sender<Command>> {
    let (commands, mailbox) = mailbox()?;
    let copier = Copier {
        commands: mailbox,
        streams: Vec::new(),
        tails,
        unshown,
        buffer: vec![0; BUFFER],
        has_warned: false,
    };
    thread::Builder::new()
        .name(file.name().to_owned())
        .stack_size(128 << 10)
        .spawn(move || copier.run())?;
    Ok(commands)
}

struct Stream {
    id: u64,
    local_rank: LocalRank,
    target: Target,
    pipe: Arc<OwnedFd>,
    /// `true` if bytes are written as they arrive, without regard to lines.
    is_shown_directly: bool,
    /// `true` if the thread buffers the beginning of a line until its end arrives.
    holds_lines: bool,
    /// Beginning of an unfinished line, without the part that was shown.
    pending: Vec<u8>,
    /// Shown part of the unfinished line; empty if it cannot be repeated.
    begun: Option<Vec<u8>>,
    /// Time at which the beginning of a line is shown.
    flush_at: Option<Instant>,
    /// Time at which a line that was too long to be held began on the console.
    long_since: Option<Instant>,
    last_read: Instant,
    /// `true` once the thread has tried to raise the capacity of the pipe.
    is_flooded: bool,
}

/// Result of one read of a stream.
enum Copied {
    Nothing,
    Some,
    Ended,
}

impl Stream {
    /// Adds output, and shows the lines that it completes.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        if self.is_shown_directly {
            let fd = match self.target {
                Target::Stdout => rustix::stdio::stdout(),
                Target::Stderr => rustix::stdio::stderr(),
            };
            return write_all(fd, bytes);
        }
        self.last_read = Instant::now();
        let mut shown = Ok(());
        let rest = match memrchr(b'\n', bytes) {
            Some(end) => {
                shown = self.show(Some(&bytes[..end]));
                (self.begun, self.flush_at, self.long_since) = (None, None, None);
                &bytes[end + 1..]
            }
            None => bytes,
        };
        self.pending.extend_from_slice(rest);
        if !self.holds_lines {
            return shown.and(self.flush());
        }
        if self.pending.len() > LONGEST_LINE {
            self.long_since.get_or_insert(self.last_read);
            return shown.and(self.flush());
        }
        if !self.pending.is_empty() {
            self.flush_at.get_or_insert(self.last_read + HOLD);
        }
        shown
    }

    /// Shows the beginning of a line whose end does not arrive.
    fn flush(&mut self) -> Result<(), Errno> {
        self.flush_at = None;
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = self.pending.clone();
        let shown = self.show(None);
        let mut begun = self.begun.take();
        // What a carriage return has overwritten is not repeated.
        match (memrchr(b'\r', &pending), &mut begun) {
            (Some(start), begun) => *begun = Some(pending[start..].to_vec()),
            (None, Some(begun)) if begun.is_empty() => {}
            (None, Some(begun)) => begun.extend_from_slice(&pending),
            (None, begun) => *begun = Some(pending),
        }
        let is_short = |begun: &Vec<u8>| self.holds_lines && begun.len() <= LONGEST_LINE;
        self.begun = Some(begun.filter(is_short).unwrap_or_default());
        shown
    }

    /// Writes the pending bytes to the console, then `lines`.
    fn show(&mut self, lines: Option<&[u8]>) -> Result<(), Errno> {
        let mut batch = Batch::default();
        let starts_again = |text: &[u8]| {
            text.first() == Some(&b'\r') && text.get(1).is_some_and(|next| *next != b'\n')
        };
        let mut begun = self.begun.as_deref();
        if begun.is_some() && (starts_again(&self.pending) || lines.is_some_and(starts_again)) {
            begun = Some(&[]);
        }
        if !self.pending.is_empty() {
            let text = &*self.pending;
            batch.add(
                b"",
                Piece {
                    text,
                    begun,
                    ended: false,
                },
            );
            begun = None;
        }
        if let Some(text) = lines {
            batch.add(
                b"",
                Piece {
                    text,
                    begun,
                    ended: true,
                },
            );
        }
        self.pending.clear();
        self.pending.shrink_to(PIPE);
        Console::get().write(self.target, self.id, &mut batch)
    }

    /// Returns the time until which a long line of this stream has the console.
    fn console_deadline(&self) -> Option<Instant> {
        Some((self.last_read + HOLD).min(self.long_since? + LONG_LINE))
    }
}

struct Copier {
    commands: Mailbox<Command>,
    streams: Vec<Stream>,
    tails: Tails,
    unshown: Arc<AtomicU64>,
    buffer: Vec<u8>,
    /// `true` if the failure of a write was reported.
    has_warned: bool,
}

impl Copier {
    fn run(mut self) {
        loop {
            let ready = self.wait();
            self.commands.drain();
            self.copy(&ready);
            let now = Instant::now();
            for at in 0..self.streams.len() {
                if self.streams[at].flush_at.is_some_and(|due| due <= now) {
                    self.flush(at);
                }
            }
            loop {
                match self.commands.try_recv() {
                    Ok(Command::Add(stream)) => {
                        if stream.target == Target::Stderr {
                            self.tails.begin(stream.local_rank);
                        }
                        self.streams.push(stream);
                    }
                    Ok(Command::Drain(answer, with_unfinished)) => {
                        self.copy_all(with_unfinished);
                        drop(answer);
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    /// Returns the stream that has the console exclusively, and its deadline.
    fn with_long_line(&self) -> Option<(usize, Instant)> {
        let now = Instant::now();
        let mut streams = self.streams.iter().enumerate();
        streams.find_map(|(at, stream)| {
            let until = stream.console_deadline().filter(|until| *until > now)?;
            Some((at, until))
        })
    }

    /// Waits for a command, output or a deadline.
    ///
    /// Returns the ids of the streams with output.
    fn wait(&self) -> Vec<u64> {
        let long = self.with_long_line();
        let streams: Vec<&Stream> = match long {
            Some((at, _)) => vec![&self.streams[at]],
            None => self.streams.iter().collect(),
        };
        let due = self.streams.iter().filter_map(|stream| stream.flush_at);
        let due = due.chain(long.map(|(_, until)| until)).min();
        let timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
        let mut waited = vec![PollFd::new(&self.commands, PollFlags::IN)];
        let pipes = streams
            .iter()
            .map(|stream| PollFd::new(&*stream.pipe, PollFlags::IN));
        waited.extend(pipes);
        let _ = poll(&mut waited, timeout);
        let ready = streams.iter().zip(&waited[1..]);
        let ready = ready.filter(|(_, waited)| !waited.revents().is_empty());
        ready.map(|(stream, _)| stream.id).collect()
    }

    fn copy_all(&mut self, with_unfinished: bool) {
        loop {
            let all: Vec<u64> = match self.with_long_line() {
                Some((at, until)) => {
                    let pipe = &*self.streams[at].pipe;
                    let left = until.saturating_duration_since(Instant::now());
                    let _ = poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(left));
                    vec![self.streams[at].id]
                }
                None => self.streams.iter().map(|stream| stream.id).collect(),
            };
            if !self.copy(&all) && self.with_long_line().is_none() {
                break;
            }
        }
        if with_unfinished {
            for at in 0..self.streams.len() {
                self.flush(at);
            }
        }
    }

    /// Copies up to one buffer of each of these streams.
    /// Returns `false` if there was nothing to copy.
    fn copy(&mut self, ids: &[u64]) -> bool {
        let mut copied = false;
        for id in ids {
            let Some(at) = self.streams.iter().position(|stream| stream.id == *id) else {
                continue;
            };
            match self.copy_one(at) {
                Copied::Nothing => {}
                Copied::Some => copied = true,
                Copied::Ended => {
                    self.flush(at);
                    self.streams.retain(|stream| stream.id != *id);
                }
            }
            if self.with_long_line().is_some() {
                break;
            }
        }
        copied
    }

    fn copy_one(&mut self, at: usize) -> Copied {
        let stream = &mut self.streams[at];
        let read = match rustix::io::read(&*stream.pipe, &mut self.buffer[..]) {
            Ok(0) => return Copied::Ended,
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Copied::Nothing,
            Err(_) => return Copied::Ended,
        };
        if read >= PIPE && !stream.is_flooded {
            stream.is_flooded = true;
            // A failure only makes the output slower.
            let _ = fcntl_setpipe_size(&*stream.pipe, FLOODED_PIPE);
        }
        let bytes = &self.buffer[..read];
        if stream.target == Target::Stderr {
            self.tails.retain(stream.local_rank, bytes);
        }
        self.unshown.fetch_add(read as u64, Ordering::Relaxed);
        let before = stream.pending.len() + read;
        let (written, target) = (stream.take(bytes), stream.target);
        let shown = before - stream.pending.len();
        self.unshown.fetch_sub(shown as u64, Ordering::Relaxed);
        self.check(target, written);
        Copied::Some
    }

    /// Shows the beginning of a stream's unfinished line.
    fn flush(&mut self, at: usize) {
        let Some(stream) = self.streams.get_mut(at) else {
            return;
        };
        let pending = stream.pending.len() as u64;
        let (written, target) = (stream.flush(), stream.target);
        self.unshown.fetch_sub(pending, Ordering::Relaxed);
        self.check(target, written);
    }

    fn check(&mut self, target: Target, written: Result<(), Errno>) {
        match written {
            // Workers that still write get the same error as without the pipe.
            Err(Errno::PIPE) => self.streams.retain(|stream| stream.target != target),
            // The worker must not notice any other error (a full disk, for example).
            Err(errno) if !self.has_warned && target == Target::Stdout => {
                self.has_warned = true;
                let error = io::Error::from(errno);
                tracing::warn!("cannot write the workers' output to stdout: {error}");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    /// Writes to worker 0's stderr, closes it, and waits for the copy of the text.
    fn captured(text: &[u8]) -> Capture {
        let mut capture = Capture::default();
        let ends = pty::open_pipe().unwrap();
        let writer = capture.add(LocalRank(0), Target::Stderr, ends, false);
        let writer = writer.unwrap();
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
