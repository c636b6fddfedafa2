//! Messages from one rank to another. The others take no part and need not know.
//!
//! | file | is |
//! |---|---|
//! | `transfer.rs` | the buffers, and an operation that has not ended |
//! | `driver/` | the thread that moves messages, the operations, and their end |
//! | `arriving.rs` | the connection of a peer that sends |
//! | `leaving.rs` | the connection to a peer that receives |
//!
//! Which message goes to which receive is decided by `matching`.
//!
//! Messages have connections and a listener of their own, beside those of the collectives: so a
//! message waits for no collective and no collective for it. A thread moves them; it starts with
//! the first message of this rank.

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
use crate::call::{Call, Operation};
use crate::element::ElementType;
use crate::error::{CollectiveError, Result};
use crate::interrupt::Interrupt;
use crate::mesh::Mesh;
use crate::running::Running;
use crate::socket::Setup;
use crate::wire::Frame;
use crate::work::{Work, work};

/// Sends and receives messages in a group: a handle that is cloned and used by any thread, also while the group
/// is in a collective operation. Each handle has a time limit of its own, at first that of the group.
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
///     // Both send first: nothing waits for the other one's receive.
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
/// The rules:
///
/// - A receive takes a message with its tag. Messages between the same ranks with the same tag are
///   received in the order of the sends; receives take messages in the order in which they were
///   posted, whether they name a rank or not.
/// - A send has ended when its values are on their way to a rank that is there, and the buffer is
///   free; that says nothing about the receive. A message of more than 64 KiB waits for its receive
///   first, and so does a shorter one while 256 KiB of this rank wait at the other one. A rank
///   keeps no more than this for each other one, and 1024 messages without values.
/// - A failure is final for the group, as for collective operations: a lost rank that an operation
///   waits for, a message of another length or type, the end of the time limit. All operations end
///   then, here and at the other ranks.
/// - A rank that leaves the group ends the operations that wait for it with
///   [`CollectiveError::Lost`]. A receive from any rank ends when a rank is lost that did not leave
///   in order, or when all have left.
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
    /// No message yet.
    Idle(Box<Setup>),
    Running {
        commands: Sender<Command>,
        thread: JoinHandle<()>,
    },
    /// The rank has left the group, or there could be no thread.
    Ended,
}

/// An order of another thread to the driver. It ends when nobody can tell it anything.
enum Command {
    Begin(Transfer),
    /// The group was broken by another operation.
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

    /// The same handle with another time limit for the operations that follow. It counts from the call.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Begins to send the values of a buffer to a rank, with a tag. The result of the work is the buffer.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Argument`] if there is no such rank or it is this one, [`CollectiveError::Broken`] or
    /// [`CollectiveError::Interrupted`] if the group has ended, [`CollectiveError::System`] if there can be no thread.
    /// Other errors are those of the work.
    pub fn send<B: SendBuffer>(&self, buffer: B, to: u32, tag: u32) -> Result<Work<B>> {
        self.check_other("send to", to)?;
        let (element, length) = (buffer.element(), buffer.bytes().len());
        let (completer, work) = work();
        let sending = Sending { buffer, completer };
        let operation = Operation::Send { to, tag };
        self.begin(operation, element, length, Some(to), Box::new(sending))?;
        Ok(work)
    }

    /// Begins to receive a message with a tag into a buffer, from a rank or, without `from`, from any. The message
    /// must be as long as the buffer. The result of the work has the buffer and the sender.
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send).
    pub fn receive<B: ReceiveBuffer>(
        &self,
        mut buffer: B,
        from: Option<u32>,
        tag: u32,
    ) -> Result<Work<Received<B>>> {
        match from {
            Some(from) => self.check_other("receive from", from)?,
            None if self.inner.member.world_size == 1 => {
                let nobody = "receive from any rank: the group has no other rank";
                return Err(CollectiveError::Argument(nobody.to_owned()));
            }
            None => {}
        }
        let (element, length) = (buffer.element(), buffer.bytes_mut().len());
        let (completer, work) = work();
        let receiving = Receiving { buffer, completer };
        let operation = Operation::Receive { from, tag };
        self.begin(operation, element, length, from, Box::new(receiving))?;
        Ok(work)
    }

    fn begin(
        &self,
        operation: Operation,
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
        // Under the lock, so that the driver has the operations in the order of their numbers.
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

    /// The group was broken: ends all operations and tells the peers.
    pub(crate) fn break_off(&self, broken: &Break) {
        let mut state = self.inner.state.lock();
        if let Stage::Running { commands, .. } = &state.stage {
            commands.send(Command::Break);
        } else if let Stage::Idle(setup) = std::mem::replace(&mut state.stage, Stage::Ended) {
            setup.close(&self.inner.member, &broken.frame());
        }
    }

    /// This rank leaves the group: ends all operations and says so to the peers.
    pub(crate) fn leave(&self) {
        let stage = std::mem::replace(&mut self.inner.state.lock().stage, Stage::Ended);
        match stage {
            Stage::Idle(setup) => setup.close(&self.inner.member, &Frame::Leave),
            Stage::Running { commands, thread } => {
                drop(commands);
                // A function that is called when an operation has ended may drop the group, on this
                // very thread.
                if thread.thread().id() != thread::current().id() {
                    // A panic was reported by the work that it ended.
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
    /// Gives the driver a command. It starts with the first one, which it has before anything else happens.
    fn tell(&self, state: &mut State, command: Command) -> Result<()> {
        if let Stage::Running { commands, .. } = &state.stage {
            commands.send(command);
            return Ok(());
        }
        let Stage::Idle(setup) = std::mem::replace(&mut state.stage, Stage::Ended) else {
            return Err(CollectiveError::broken(LEFT));
        };
        let what = "start the thread of a process group that moves messages";
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

/// The error of operations that a rank leaves behind.
const LEFT: &str = "this rank has left the group";

/// The membership of a rank: when it is dropped, the rank leaves.
#[derive(Debug)]
pub(crate) struct Membership(pub(crate) PointToPoint);

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.leave();
    }
}
