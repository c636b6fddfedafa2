//! Messages from one rank to another, without the participation of other ranks.
//!
//! | file | content |
//! |---|---|
//! | `transfer.rs` | buffers, and operations that have not ended |
//! | `driver/` | the thread that moves messages, the operations, and their end |
//! | `arriving.rs` | the connection of a peer that sends |
//! | `leaving.rs` | the connection to a peer that receives |
//!
//! `matching` decides which receive gets a message.
//!
//! Messages have a separate listener and separate connections. Messages and collectives therefore
//! never wait for each other. A thread moves the messages, and starts with the first send or
//! receive on this rank.

mod arriving;
mod driver;
mod leaving;
mod transfer;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdzv_event::{Sender, mailbox};
use rdzv_lock::Mutex;

use self::driver::Driver;
pub use self::transfer::{ReceiveBuffer, Received, SendBuffer};
use self::transfer::{Receiving, Sending, Transfer, Values};
use crate::acceptor::Member;
use crate::broken::Break;
use crate::call::{Call, GroupOperation};
use crate::element::ElementType;
use crate::error::{CollectiveError, Result};
use crate::interrupt::Interrupt;
use crate::mesh::Mesh;
use crate::running::Running;
use crate::socket::Setup;
use crate::wire::Frame;
use crate::work::{Work, work};

/// Handle for sending and receiving messages in a group.
///
/// The handle can be cloned and used on any thread, even while the group runs a collective
/// operation. Each handle has its own timeout, initially that of the group.
///
/// ```
/// use std::thread;
/// use std::time::Duration;
/// use rdzv_collective::{CollectiveError, ProcessGroup};
///
/// let store = rdzv_store::HashStore::new();
/// let store = &store;
/// let exchange = |rank: u32| -> Result<(), CollectiveError> {
///     let group = ProcessGroup::new(store, rank, 2, Duration::from_secs(60))?;
///     let messages = group.point_to_point();
///     // Both send first: `send` returns before the other rank receives.
///     let sent = messages.send(vec![rank; 100_000], 1 - rank, 7)?;
///     let received = messages.receive(vec![0_u32; 100_000], None, 7)?.wait()?;
///     assert_eq!((received.from, received.buffer[99_999]), (1 - rank, 1 - rank));
///     sent.wait()?;
///     Ok(())
/// };
/// thread::scope(|scope| {
///     let ranks = [0, 1].map(|rank| scope.spawn(move || exchange(rank)));
///     ranks.into_iter().try_for_each(|rank| rank.join().expect("it does not panic"))
/// })?;
/// # Ok::<(), CollectiveError>(())
/// ```
///
/// Rules:
///
/// - A receive takes a message with its tag. Messages between the same ranks with the same tag are
///   received in the order in which they were sent. Receives take messages in the order in which
///   they were posted, whether or not they specify a rank.
/// - A send finishes when its values are in flight to a connected rank and the buffer is free. The
///   message may not have been received yet. A message of more than 64 KiB first waits for its
///   receive. A shorter message waits if more than 256 KiB or 1024 messages from this rank would
///   otherwise be pending at the other rank. A rank buffers no more than this for each other rank.
/// - A failure is final for the group, as for collective operations. Examples: an operation waits
///   for a rank that is lost, a message has another length or type, a timeout expires. All
///   operations then fail, here and on the other ranks.
/// - If a rank leaves the group, operations that wait for it fail with [`CollectiveError::Lost`]. A
///   receive from any rank fails if a rank is lost without leaving the group, or once all other
///   ranks have left.
#[derive(Clone)]
pub struct PointToPoint {
    inner: Arc<Inner>,
    timeout: Duration,
}

struct Inner {
    member: Member,
    interrupt: Arc<Interrupt>,
    broken: Arc<OnceLock<Break>>,
    state: Mutex<State>,
}

struct State {
    /// Number of operations that have been called.
    sequence: u64,
    stage: Stage,
}

enum Stage {
    /// No message has been sent or received yet.
    Idle(Box<Setup>),
    Running {
        commands: Sender<Command>,
        thread: JoinHandle<()>,
    },
    /// No thread runs any more, or none has started.
    ///
    /// The rank has left the group, the group broke before its first message, or the thread could
    /// not start.
    Ended,
}

/// Command to the driver, which ends when no thread can send one any more.
enum Command {
    Begin(Transfer),
    /// Another operation broke the group.
    Break,
}

impl PointToPoint {
    pub(crate) fn new(
        mesh: &Mesh,
        setup: Setup,
        broken: Arc<OnceLock<Break>>,
        timeout: Duration,
    ) -> Self {
        let state = State {
            sequence: 0,
            stage: Stage::Idle(Box::new(setup)),
        };
        let inner = Arc::new(Inner {
            member: mesh.member,
            interrupt: Arc::clone(&mesh.interrupt),
            broken,
            state: Mutex::new(state),
        });
        Self { inner, timeout }
    }

    /// Returns this handle with another timeout for later operations.
    ///
    /// The timeout starts when the operation is called.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Starts to send a buffer to a rank with a tag; the work returns the buffer.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Argument`] if the rank does not exist or is this one,
    /// [`CollectiveError::Broken`] if the group is broken or this rank has left it,
    /// [`CollectiveError::System`] if the system cannot start a thread. The work reports other
    /// errors.
    pub fn send<B: SendBuffer>(&self, buffer: B, to: u32, tag: u32) -> Result<Work<B>> {
        self.check_other("send to", to)?;
        let (element, length) = (buffer.element(), buffer.bytes().len());
        let (completer, work) = work();
        let sending = Sending { buffer, completer };
        let operation = GroupOperation::Send { to, tag };
        self.begin(operation, element, length, Some(to), Box::new(sending))?;
        Ok(work)
    }

    /// Starts to receive a message with a tag into a buffer of the same length.
    ///
    /// The sender is the rank `from`, or any rank if it is `None`. The work returns the buffer and
    /// the sender.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`send`](Self::send), and [`CollectiveError::Argument`] if the group
    /// has no other rank.
    pub fn receive<B: ReceiveBuffer>(
        &self,
        mut buffer: B,
        from: Option<u32>,
        tag: u32,
    ) -> Result<Work<Received<B>>> {
        match from {
            Some(from) => self.check_other("receive from", from)?,
            None if self.inner.member.world_size == 1 => {
                let no_rank = "receive from any rank: the group has no other rank";
                return Err(CollectiveError::Argument(no_rank.to_owned()));
            }
            None => {}
        }
        let (element, length) = (buffer.element(), buffer.bytes_mut().len());
        let (completer, work) = work();
        let receiving = Receiving { buffer, completer };
        let operation = GroupOperation::Receive { from, tag };
        self.begin(operation, element, length, from, Box::new(receiving))?;
        Ok(work)
    }

    fn begin(
        &self,
        operation: GroupOperation,
        element: ElementType,
        bytes: usize,
        peer: Option<u32>,
        values: Box<dyn Values>,
    ) -> Result<()> {
        if let Some(broken) = self.inner.broken.get() {
            return Err(broken.error());
        }
        let mut state = self.inner.state.lock();
        state.sequence += 1;
        let call = Call {
            operation,
            element,
            elements: (bytes / element.size()) as u64,
            sequence: state.sequence,
        };
        let running = Running {
            call,
            started: Instant::now(),
            timeout: self.timeout,
        };
        let transfer = Transfer {
            running,
            values,
            peer,
            is_matched: false,
        };
        // Under the lock, so that the driver gets the operations in the order of their numbers.
        self.inner.tell(&mut state, Command::Begin(transfer))
    }

    fn check_other(&self, what: &str, rank: u32) -> Result<()> {
        let member = &self.inner.member;
        member.check_rank(what, rank)?;
        if rank != member.rank {
            return Ok(());
        }
        let wrong = format!("{what} rank {rank}: that is this rank");
        Err(CollectiveError::Argument(wrong))
    }

    /// Ends all operations and notifies the peers, because the group was broken.
    pub(crate) fn break_off(&self, broken: &Break) {
        let mut state = self.inner.state.lock();
        if let Stage::Running { commands, .. } = &state.stage {
            commands.send(Command::Break);
        } else if let Stage::Idle(setup) = std::mem::replace(&mut state.stage, Stage::Ended) {
            setup.close(&self.inner.member, &broken.frame());
        }
    }

    /// Ends all operations and notifies the peers, because this rank leaves.
    pub(crate) fn leave(&self) {
        let stage = std::mem::replace(&mut self.inner.state.lock().stage, Stage::Ended);
        match stage {
            Stage::Idle(setup) => setup.close(&self.inner.member, &Frame::Leave),
            Stage::Running { commands, thread } => {
                drop(commands);
                // A callback at the end of an operation may drop the group on this thread.
                if thread.thread().id() != thread::current().id() {
                    // A panic of the thread was already reported by its work.
                    let _ = thread.join();
                }
            }
            Stage::Ended => {}
        }
    }
}

impl fmt::Debug for PointToPoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("PointToPoint");
        shown
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Sends the driver a command, and starts the driver with the first command.
    fn tell(&self, state: &mut State, command: Command) -> Result<()> {
        if let Stage::Running { commands, .. } = &state.stage {
            commands.send(command);
            return Ok(());
        }
        let Stage::Idle(setup) = std::mem::replace(&mut state.stage, Stage::Ended) else {
            return Err(CollectiveError::broken(LEFT));
        };
        let what = "start the message thread of a process group";
        let starting = |error| CollectiveError::system(what, error);
        let (commands, mailbox) = mailbox().map_err(starting)?;
        commands.send(command);
        let driver = Driver::new(self, *setup, mailbox);
        let thread = thread::Builder::new().name("rdzv-messages".to_owned());
        let thread = thread.spawn(move || driver.run()).map_err(starting)?;
        state.stage = Stage::Running { commands, thread };
        Ok(())
    }
}

/// Error of operations of a rank that has left the group.
const LEFT: &str = "this rank has left the group";

/// Membership of a rank; a drop leaves the group.
#[derive(Debug)]
pub(crate) struct Membership(pub(crate) PointToPoint);

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.leave();
    }
}
