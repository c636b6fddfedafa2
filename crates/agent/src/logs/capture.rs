//! Overhears what workers write to the agent's own stderr, so that the last words of one that fails
//! are known.
//!
//! A worker whose stderr is neither redirected nor teed shares the agent's. If that is a terminal, it
//! is handed on as it is: workers ask whether it is one. Otherwise (a file, a pipe, a job's log) each
//! worker gets a pipe of its own, which one thread copies there as it comes:
//!
//! ```text
//!   worker 0 ── pipe ──┐
//!   worker 1 ── pipe ──┼─► thread ──► the agent's stderr     bytes unchanged, no prefix
//!                      └─► the last 16 KiB of each
//! ```
//!
//! What a worker notices of that: nothing, but that its stderr is a pipe (as it would be behind
//! `| tee`). If the reader of the agent's stderr stalls, so does, some 64 KiB later, the worker, as
//! without the pipe; if the reader goes away, the pipes are closed too. A worker never outlives the
//! agent, so it never writes into a pipe that nobody reads.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::mpsc::{TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rdzv_core::rank::LocalRank;
use rdzv_event::{Mailbox, Sender, mailbox};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::sync::oneshot;

/// How much of the end of a worker's stderr is kept, in bytes.
const KEPT: usize = 16 << 10;

/// How much is read, and so written, at once: what a pipe holds.
const BUFFER: usize = 64 << 10;

/// How long the agent waits for what a failed worker has written, before it says more itself.
const SETTLED_WITHIN: Duration = Duration::from_millis(50);

type Tails = Arc<Mutex<BTreeMap<LocalRank, VecDeque<u8>>>>;

/// A command of the agent to the thread.
enum Command {
    Add(LocalRank, OwnedFd),
    /// Call this when everything that was written has been copied.
    Drain(Box<dyn FnOnce() + Send>),
}

/// The agent's end.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    /// The thread ends when this is dropped.
    thread: Option<Sender<Command>>,
    tails: Tails,
}

impl Listener {
    /// What a worker that would share the agent's stderr gets instead; `None` if it had better share
    /// it, because that is a terminal, or a pipe is not to be had.
    pub(crate) fn stderr(&mut self, local_rank: LocalRank) -> Option<Stdio> {
        if io::stderr().is_terminal() {
            return None;
        }
        self.pipe(local_rank)
            .inspect_err(|error| tracing::debug!("stderr is not overheard: {error}"))
            .ok()
    }

    fn pipe(&mut self, local_rank: LocalRank) -> io::Result<Stdio> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        // Only this end: how the worker writes is its own business.
        fcntl_setfl(&reader, fcntl_getfl(&reader)? | OFlags::NONBLOCK)?;
        let thread = match &mut self.thread {
            Some(thread) => thread,
            none => none.insert(start(Arc::clone(&self.tails))?),
        };
        thread.send(Command::Add(local_rank, reader));
        Ok(writer.into())
    }

    /// Waits until everything that ended workers have written is copied. May be dropped while
    /// waiting.
    pub(crate) async fn drained(&self) {
        if let Some(thread) = &self.thread {
            let (answer, drained) = oneshot::channel();
            thread.send(Command::Drain(Box::new(|| {
                let _ = answer.send(());
            })));
            let _ = drained.await;
        }
    }

    /// The same, but for a moment only and at once: so that what is said of a worker's end stands
    /// behind the worker's own last words.
    pub(crate) fn settle(&self) {
        if let Some(thread) = &self.thread {
            let (answer, settled) = channel();
            thread.send(Command::Drain(Box::new(move || {
                let _ = answer.send(());
            })));
            let _ = settled.recv_timeout(SETTLED_WITHIN);
        }
    }

    /// The last lines of a worker's stderr, `most` at most, oldest first.
    pub(crate) fn tail(&self, local_rank: LocalRank, most: usize) -> Vec<String> {
        let tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tail) = tails.get(&local_rank) else {
            return Vec::new();
        };
        let bytes: Vec<u8> = tail.iter().copied().collect();
        drop(tails);
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text
            .lines()
            .map(|line| line.rsplit('\r').next().unwrap_or_default())
            .collect();
        // The first line is rarely a whole one if there was more before it.
        let skipped = usize::from(bytes.len() >= KEPT && lines.len() > 1);
        let skipped = skipped.max(lines.len().saturating_sub(most));
        lines[skipped..]
            .iter()
            .map(|line| (*line).to_owned())
            .collect()
    }
}

fn start(tails: Tails) -> io::Result<Sender<Command>> {
    let (commands, mailbox) = mailbox()?;
    let copier = Copier {
        commands: mailbox,
        pipes: Vec::new(),
        tails,
    };
    thread::Builder::new()
        .name("overhear".to_owned())
        .stack_size(128 << 10)
        .spawn(move || copier.run())?;
    Ok(commands)
}

/// The thread's own state.
struct Copier {
    commands: Mailbox<Command>,
    pipes: Vec<(LocalRank, OwnedFd)>,
    tails: Tails,
}

impl Copier {
    fn run(mut self) {
        let mut buffer = vec![0; BUFFER];
        loop {
            let mut waited = vec![PollFd::new(&self.commands, PollFlags::IN)];
            waited.extend(
                self.pipes
                    .iter()
                    .map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)),
            );
            let _ = poll(&mut waited, None);
            let ready: Vec<bool> = waited[1..]
                .iter()
                .map(|waited| !waited.revents().is_empty())
                .collect();
            drop(waited);
            self.commands.drain();
            let mut ready = ready.into_iter();
            self.copy(&mut buffer, |_| ready.next().unwrap_or(false));
            loop {
                match self.commands.try_recv() {
                    Ok(Command::Add(local_rank, pipe)) => {
                        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
                        tails.insert(local_rank, VecDeque::new());
                        self.pipes.push((local_rank, pipe));
                    }
                    Ok(Command::Drain(answer)) => {
                        while self.copy(&mut buffer, |_| true) {}
                        answer();
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    /// Copies at most one buffer full of each pipe that `wanted` names by its place; false if there
    /// was nothing.
    fn copy(&mut self, buffer: &mut [u8], mut wanted: impl FnMut(usize) -> bool) -> bool {
        let tails = &self.tails;
        let mut place = 0;
        let mut copied = false;
        let mut reader_is_gone = false;
        self.pipes.retain(|(local_rank, pipe)| {
            place += 1;
            if !wanted(place - 1) {
                return true;
            }
            match rustix::io::read(pipe, &mut *buffer) {
                Ok(0) => false,
                Ok(read) => {
                    copied = true;
                    keep(tails, *local_rank, &buffer[..read]);
                    reader_is_gone |= write_all(&buffer[..read]).is_err();
                    true
                }
                Err(Errno::AGAIN | Errno::INTR) => true,
                Err(_) => false,
            }
        });
        if reader_is_gone {
            // Workers that go on writing are told as they would be without us.
            self.pipes.clear();
        }
        copied
    }
}

fn keep(tails: &Tails, local_rank: LocalRank, bytes: &[u8]) {
    let mut tails = tails.lock().unwrap_or_else(PoisonError::into_inner);
    let tail = tails.entry(local_rank).or_default();
    tail.extend(&bytes[bytes.len().saturating_sub(KEPT)..]);
    let surplus = tail.len().saturating_sub(KEPT);
    tail.drain(..surplus);
}

fn write_all(mut bytes: &[u8]) -> Result<(), Errno> {
    let stderr = rustix::stdio::stderr();
    while !bytes.is_empty() {
        match rustix::io::write(stderr, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            // Whoever shares it may have made it so.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None);
            }
            Err(Errno::PIPE) => return Err(Errno::PIPE),
            // A full disk, say: the worker is better off if it does not notice.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    /// Writes to worker 0's stderr, closes it, and waits until all is copied.
    fn overheard(text: &[u8]) -> Listener {
        let mut listener = Listener::default();
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        fcntl_setfl(&reader, OFlags::NONBLOCK).unwrap();
        let line = start(Arc::clone(&listener.tails)).unwrap();
        line.send(Command::Add(LocalRank(0), reader));
        listener.thread = Some(line);
        let mut rest = text;
        while !rest.is_empty() {
            let written = rustix::io::write(&writer, rest).unwrap();
            rest = &rest[written..];
        }
        drop(writer);
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(listener.drained());
        listener
    }

    #[test]
    fn the_end_of_what_was_written_is_kept() {
        let text: String = (0..5_000).map(|line| format!("line {line}\n")).collect();
        let lines = overheard(text.as_bytes()).tail(LocalRank(0), 2_000);
        assert_eq!(lines.last().map(String::as_str), Some("line 4999"));
        assert!(
            lines.iter().all(|line| line.starts_with("line ")),
            "{lines:?}"
        );
        assert!((1_000..2_000).contains(&lines.len()), "{}", lines.len());
    }

    #[test]
    fn few_lines_are_all_there_and_of_a_progress_bar_the_last_state() {
        let listener = overheard(b"a\n10%\r20%\nlast");
        assert_eq!(listener.tail(LocalRank(0), 9), ["a", "20%", "last"]);
        assert_eq!(listener.tail(LocalRank(0), 1), ["last"]);
        assert!(listener.tail(LocalRank(1), 1).is_empty());
    }
}
