//! The view of a run on a terminal: lines of all workers with labels, and rows below them.
//!
//! ```text
//!   worker ── terminal ──► relay ── packets ──► view ──► console
//!                                     screens, blocks, folded lines (rdzv_console::live)
//! ```
//!
//! | file | is |
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
use rdzv_console::live::{Awaited, Row, Status, strip};
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

/// Time that the agent waits for the output of a failed worker before it logs the failure.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(50);

/// Time for the last drawing when the run has ended.
const END_TIMEOUT: Duration = Duration::from_millis(200);

/// Columns of the row of the state beside the first part of what is awaited: the time that is left.
const TIMES: usize = 16;

/// The looks of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewOptions {
    /// Rows below the lines; otherwise there are lines only.
    pub rows: bool,
    /// Workers write to terminals; otherwise to pipes.
    pub terminals: bool,
    /// Labels are coloured.
    pub colours: bool,
    /// Number of workers of this node.
    pub workers: u32,
}

/// The view of one run. Clones are the same view.
#[derive(Clone)]
pub struct LiveView {
    options: ViewOptions,
    thread: Sender<Command>,
    readers: Arc<Readers>,
    tails: Tails,
    labels: Labels,
    origin: Instant,
}

/// The relay and what it reads.
struct Readers {
    relay: Mutex<Arc<Relay>>,
    streams: Mutex<BTreeMap<StreamId, Reader>>,
    next: AtomicU64,
}

/// One of the agent's ends.
struct Reader {
    end: OwnedFd,
    /// Columns that the label takes; `None` for a pipe.
    label: Option<u16>,
}

/// A command of the agent to the thread.
enum Command {
    Add(StreamId, WorkerRanks, Target),
    Status(Option<Box<Status>>),
    Awaited(Awaited),
    /// Dropped when all output so far is on the console.
    Drain(Box<dyn Send>),
    Resized,
    /// Somebody else has the terminal, or no more.
    Suspend(bool),
    /// Take the rows away, and drop this.
    End(Box<dyn Send>),
}

impl LiveView {
    /// Starts the view. It shows nothing before there is something to show.
    ///
    /// # Errors
    ///
    /// The system's, if it has no thread left.
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

    /// The time now, as the times in a [`Status`] count it.
    pub fn now(&self) -> Mono {
        Mono::from_origin(self.origin.elapsed())
    }

    /// Shows this state below everything else; `None` shows none.
    pub fn set_status(&self, status: Option<Status>) {
        self.thread.send(Command::Status(status.map(Box::new)));
    }

    /// Says what is awaited in the present phase, and for how long at most. False if there is no row where its first
    /// part (up to a `; `) can be seen.
    pub fn set_awaited(&self, text: &str, left: Option<Duration>) -> bool {
        let awaited = Awaited {
            text: text.to_owned(),
            until: left.map(|left| self.now() + left),
        };
        self.thread.send(Command::Awaited(awaited));
        let first = text.split("; ").next().unwrap_or_default();
        let room = usize::from(pty::size().0).saturating_sub(TIMES);
        self.options.rows && Row::plain(first).columns() <= room
    }

    /// Takes the rows away. Lines that are written from here on are the last.
    pub fn end(&self) {
        let (done, ended) = channel::<()>();
        self.thread.send(Command::End(Box::new(done)));
        let _ = ended.recv_timeout(END_TIMEOUT);
    }

    /// Gives a worker terminals for its streams that go to no file.
    pub(crate) fn attach(&self, ranks: &WorkerRanks, streams: &mut WorkerStreams) {
        self.tails.begin(ranks.local_rank);
        let open = |target, stream: &mut Option<OwnedFd>| {
            if stream.is_none() {
                match self.open(ranks, target) {
                    Ok(writer) => *stream = Some(writer),
                    // It then shares the console, which is worse only to look at.
                    Err(error) => tracing::debug!("no terminal for a worker: {error}"),
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
        let (Ends { reader, writer }, label) = match self.options.terminals {
            // Where there are no pseudo-terminals (a container without devpts), pipes have to do.
            true => terminal().or_else(|_| pipe())?,
            false => pipe()?,
        };
        let relay = self.readers.relay();
        let mut all = self.readers.streams();
        let id = self.readers.next.fetch_add(1, Ordering::Relaxed);
        // First, so that the thread knows whose packets come.
        self.thread.send(Command::Add(id, *ranks, target));
        relay.add(id, reader.as_fd())?;
        all.insert(id, Reader { end: reader, label });
        Ok(writer)
    }

    /// The terminal has another size, perhaps.
    pub(crate) fn resized(&self) {
        let size = pty::size();
        for reader in self.readers.streams().values() {
            if let Some(label) = reader.label {
                // One that is about to end does not matter.
                let _ = pty::resize(&reader.end, inner_size(size, label));
            }
        }
        self.thread.send(Command::Resized);
    }

    /// The job is suspended, or goes on.
    pub(crate) fn suspend(&self, is_suspended: bool) {
        // At once: a shell may be about to write its prompt.
        Console::get().suspend_rows(is_suspended);
        self.thread.send(Command::Suspend(is_suspended));
    }

    /// The last lines of a worker's stderr, `most` at most, oldest first.
    pub(crate) fn tail(&self, local_rank: LocalRank, most: usize) -> Vec<String> {
        let (bytes, cut) = self.tails.of(local_rank);
        last_lines(strip(&bytes).as_bytes(), cut, most)
    }

    /// Waits until everything that ended workers have written is on the console. May be dropped while
    /// waiting.
    pub(crate) async fn drained(&self) {
        let (answer, drained) = oneshot::channel::<()>();
        self.thread.send(Command::Drain(Box::new(answer)));
        let _ = drained.await;
    }

    /// Blocks until then, with a short timeout, so that log lines about a worker's end follow the
    /// worker's own output.
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

/// The size of a worker's terminal: what its label leaves of a row.
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

    /// Goes on with a thread after somebody has killed the relay.
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
