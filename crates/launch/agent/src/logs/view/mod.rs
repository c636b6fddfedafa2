//! View of a run on a terminal: lines of all workers with labels.
//!
//! The live view also has rows below the lines; the plain view has none.
//!
//! ```text
//!   worker ── terminal ──► relay ── packets ──► view ──► console
//!                                     screens, blocks, folded lines (rdzv_console::live)
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | the interface of the agent and of the program |
//! | `thread` | the thread that takes the packets and draws |
//! | `stream` | one stream of a worker |
//! | `labels` | the labels of this node's workers |

mod labels;
mod stream;
mod thread;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdzv_agent_proto::group::WorkerRanks;
use rdzv_console::live::{AwaitedText, Row, Status, strip};
use rdzv_core::rank::LocalRank;
use rdzv_core::time::Mono;
use rdzv_event::{Sender, mailbox};
use tokio::sync::oneshot;

use self::labels::Labels;
use self::thread::View;
use super::capture::Tails;
use super::console::{Console, Target};
use super::last_lines::last_lines;
use super::pty::{self, Ends};
use super::relay::{Relay, StreamId};
use super::streams::WorkerStreams;

/// Limit on the wait of a log line about a failure for the worker's output.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(50);

/// Time for the last drawing when the run has ended.
const END_TIMEOUT: Duration = Duration::from_millis(200);

/// Columns of the status row that the remaining time needs.
/// The first part of the awaited event gets the rest.
const TIMES: usize = 16;

/// Options that control how the live view looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewOptions {
    /// `true` shows status rows below the lines; `false` shows only lines.
    pub rows: bool,
    /// `true` if workers write to terminals; `false` if they write to pipes.
    pub terminals: bool,
    /// `true` if labels are coloured.
    pub colours: bool,
    /// Number of workers on this node.
    pub workers: u32,
}

/// Live view of one run. Clones refer to the same view.
#[derive(Clone)]
pub struct LiveView {
    options: ViewOptions,
    thread: Sender<Command>,
    readers: Arc<Readers>,
    tails: Tails,
    labels: Labels,
    origin: Instant,
}

/// Relay and the streams that it reads.
struct Readers {
    relay: Mutex<Arc<Relay>>,
    streams: Mutex<BTreeMap<StreamId, Reader>>,
    next: AtomicU64,
}

struct Reader {
    end: OwnedFd,
    /// Columns that the label takes; `None` for a pipe.
    label: Option<u16>,
}

enum Command {
    Add(StreamId, WorkerRanks, Target),
    Status(Option<Box<Status>>),
    Awaited(AwaitedText),
    /// Dropped once all output until now is on the console.
    Drain(Box<dyn Send>),
    Resized,
    /// `true` while another program has the terminal.
    Suspend(bool),
    /// Remove the rows, and drop this.
    End(Box<dyn Send>),
}

impl LiveView {
    /// Starts the view, which stays empty until there is output or a status.
    ///
    /// # Errors
    ///
    /// Returns the system's error if a thread cannot be started.
    pub(crate) fn start(options: ViewOptions, relay: Relay) -> io::Result<Self> {
        let (thread, commands) = mailbox()?;
        let readers = Arc::new(Readers {
            relay: Mutex::new(Arc::new(relay)),
            streams: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let tails = Tails::default();
        let labels = Labels::new(options);
        let origin = Instant::now();
        let (theirs, ends, tails_of_thread) = (Arc::clone(&readers), labels.clone(), tails.clone());
        std::thread::Builder::new()
            .name("view".to_owned())
            .stack_size(256 << 10)
            .spawn(move || {
                View::new(options, commands, theirs, tails_of_thread, ends, origin).run();
            })?;
        Ok(Self {
            options,
            thread,
            readers,
            tails,
            labels,
            origin,
        })
    }

    /// Returns the current time on the clock of a [`Status`].
    pub fn now(&self) -> Mono {
        Mono::from_origin(self.origin.elapsed())
    }

    /// Shows `status` below all output; `None` removes the status.
    pub fn set_status(&self, status: Option<Status>) {
        self.thread.send(Command::Status(status.map(Box::new)));
    }

    /// Shows the event that the current phase waits for, and the remaining time.
    /// Returns `false` if no row can show the first part of `text` (up to a `; `).
    pub fn set_awaited(&self, text: &str, left: Option<Duration>) -> bool {
        let awaited = AwaitedText {
            text: text.to_owned(),
            deadline: left.map(|left| self.now() + left),
        };
        self.thread.send(Command::Awaited(awaited));
        let first = text.split("; ").next().unwrap_or_default();
        let room = usize::from(pty::size().0).saturating_sub(TIMES);
        self.options.rows && Row::plain(first).columns() <= room
    }

    /// Removes the status rows. Later output appears as plain lines.
    pub fn end(&self) {
        let (done, ended) = channel::<()>();
        self.thread.send(Command::End(Box::new(done)));
        let _ = ended.recv_timeout(END_TIMEOUT);
    }

    /// Gives a worker terminals or pipes for its streams that go to no file.
    pub(crate) fn attach(&self, ranks: &WorkerRanks, streams: &mut WorkerStreams) {
        self.tails.begin(ranks.local_rank);
        let open = |target, stream: &mut Option<OwnedFd>| {
            if stream.is_none() {
                match self.open(ranks, target) {
                    Ok(writer) => *stream = Some(writer),
                    // The worker then shares the console, which only looks worse.
                    Err(error) => tracing::debug!("cannot create a terminal for a worker: {error}"),
                }
            }
        };
        open(Target::Stdout, &mut streams.stdout);
        open(Target::Stderr, &mut streams.stderr);
    }

    fn open(&self, ranks: &WorkerRanks, target: Target) -> io::Result<OwnedFd> {
        let label = u16::try_from(self.labels.of(&[*ranks]).width()).unwrap_or(0);
        let terminal = || {
            let ends = pty::open_terminal(inner_size(pty::size(), label));
            ends.map(|ends| (ends, Some(label)))
        };
        let pipe = || pty::open_pipe().map(|ends| (ends, None));
        let (Ends { reader, writer }, label) = if self.options.terminals {
            terminal().or_else(|_| pipe())?
        } else {
            pipe()?
        };
        let relay = self.readers.relay();
        let mut all = self.readers.streams();
        let id = self.readers.next.fetch_add(1, Ordering::Relaxed);
        // The command comes first, so that the thread knows the stream of the packets.
        self.thread.send(Command::Add(id, *ranks, target));
        relay.add(id, reader.as_fd())?;
        all.insert(id, Reader { end: reader, label });
        Ok(writer)
    }

    /// Updates the size of the workers' terminals, which may have changed.
    pub(crate) fn resized(&self) {
        let size = pty::size();
        for reader in self.readers.streams().values() {
            if let Some(label) = reader.label {
                // A terminal that is about to close does not matter.
                let _ = pty::resize(&reader.end, inner_size(size, label));
            }
        }
        self.thread.send(Command::Resized);
    }

    /// Suspends the rows while the job is suspended.
    pub(crate) fn suspend(&self, is_suspended: bool) {
        // This happens immediately, because a shell may be about to write its prompt.
        Console::get().suspend_rows(is_suspended);
        self.thread.send(Command::Suspend(is_suspended));
    }

    /// Returns at most `most` last lines of a worker's stderr, oldest first.
    pub(crate) fn tail(&self, local_rank: LocalRank, most: usize) -> Vec<String> {
        let (bytes, cut) = self.tails.of(local_rank);
        last_lines(strip(&bytes).as_bytes(), cut, most)
    }

    /// Waits until all output of exited workers is on the console.
    /// Cancel-safe: the caller may drop the future.
    pub(crate) async fn drained(&self) {
        let (answer, drained) = oneshot::channel::<()>();
        self.thread.send(Command::Drain(Box::new(answer)));
        let _ = drained.await;
    }

    /// Blocks until all output is on the console, with a short timeout.
    /// Log lines about a worker's exit then follow that worker's output.
    pub(crate) fn flush(&self) {
        let (answer, flushed) = channel::<()>();
        self.thread.send(Command::Drain(Box::new(answer)));
        let _ = flushed.recv_timeout(FLUSH_TIMEOUT);
    }
}

impl fmt::Debug for LiveView {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LiveView")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Returns the size of a worker's terminal, without the columns of its label.
fn inner_size((columns, rows): (u16, u16), label: u16) -> (u16, u16) {
    (columns.saturating_sub(label + 1).max(20), rows)
}

impl Readers {
    fn relay(&self) -> Arc<Relay> {
        let relay = self.relay.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&relay)
    }

    fn streams(&self) -> MutexGuard<'_, BTreeMap<StreamId, Reader>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread in place of a relay that was killed.
    fn replace_relay(&self) -> io::Result<()> {
        let relay = Relay::start_thread()?;
        let streams = self.streams();
        for (id, reader) in streams.iter() {
            relay.add(*id, reader.end.as_fd())?;
        }
        *self.relay.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(relay);
        Ok(())
    }
}
