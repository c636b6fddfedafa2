//! The process group: one rank's membership, and the frame that all operations share.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rdzv_store::{Breaker, Store};

use crate::bootstrap::{self, GroupOptions};
use crate::broken::Break;
use crate::call::{Call, Operation};
use crate::element::Element;
use crate::error::{CollectiveError, Result};
use crate::exchange::{self, Buffers, Scratch};
use crate::interrupt::Watch;
use crate::mesh::Mesh;
use crate::messages::{Membership, PointToPoint};
use crate::reduce_op::ReduceOp;
use crate::running::Running;
use crate::schedule::{Parts, Schedule};
use crate::shared_reduction;

/// One rank's membership in a group of processes that work on the same thing.
///
/// Dropping it leaves the group; ranks that still wait for this one get an error.
#[derive(Debug)]
pub struct ProcessGroup {
    mesh: Mesh,
    /// Options of this group and of the one that follows.
    pub(crate) options: GroupOptions,
    /// Number of collective operations that have been called.
    sequence: u64,
    /// The first error, once there was one.
    broken: Arc<OnceLock<Break>>,
    /// Whether the peers were peers_know of it on the connections of the collectives.
    peers_know: bool,
    /// Room for one message that is yet to be combined.
    scratch: Scratch,
    messages: Membership,
}

impl ProcessGroup {
    /// Joins the group of all ranks in this store. Returns when all ranks have joined, or names those
    /// that have not within the timeout. The timeout is that of every later operation as well.
    pub fn new(store: &dyn Store, rank: u32, world_size: u32, timeout: Duration) -> Result<Self> {
        let options = GroupOptions {
            timeout,
            ..GroupOptions::default()
        };
        Self::with_options(store, rank, world_size, &options)
    }

    /// Joins a group with a name, or at an address, of its own.
    pub fn with_options(
        store: &dyn Store,
        rank: u32,
        world_size: u32,
        options: &GroupOptions,
    ) -> Result<Self> {
        let (mesh, setup) = bootstrap::join(store, rank, world_size, options)?;
        let broken = Arc::new(OnceLock::new());
        let messages = PointToPoint::new(&mesh, setup, Arc::clone(&broken), options.timeout);
        Ok(Self {
            mesh,
            options: options.clone(),
            sequence: 0,
            broken,
            peers_know: false,
            scratch: Scratch::default(),
            messages: Membership(messages),
        })
    }

    /// Makes the group anew after a failure, under the next epoch. All ranks have to; one that was
    /// replaced by a new process joins with [`GroupOptions::epoch`], which the others know from
    /// [`ProcessGroup::epoch`]. Returns when all ranks have joined, as [`ProcessGroup::new`] does.
    ///
    /// Ranks that still wait for this one in the old group get an error at once.
    pub fn rebuild(self, store: &dyn Store) -> Result<Self> {
        let options = GroupOptions {
            epoch: self.options.epoch + 1,
            ..self.options.clone()
        };
        let (rank, world_size) = (self.rank(), self.world_size());
        drop(self);
        Self::with_options(store, rank, world_size, &options)
    }

    /// Sequence number of the group among those of its name, from 0.
    pub fn epoch(&self) -> u64 {
        self.options.epoch
    }

    /// This process's number in the group.
    pub fn rank(&self) -> u32 {
        self.mesh.member.rank
    }

    /// Number of ranks in the group.
    pub fn world_size(&self) -> u32 {
        self.mesh.member.world_size
    }

    /// A function that ends the operation in progress in another thread, and makes all later ones fail with
    /// [`CollectiveError::Interrupted`] or [`CollectiveError::Broken`]; the other ranks learn of it. Joining is
    /// ended by [`Store::breaker`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdzv_collective::{CollectiveError, ProcessGroup};
    ///
    /// let store = rdzv_store::HashStore::new();
    /// let mut group = ProcessGroup::new(&store, 0, 1, Duration::from_secs(60))?;
    /// let end = group.breaker();
    /// std::thread::spawn(move || end()).join().expect("it does not panic");
    /// assert!(matches!(group.barrier(), Err(CollectiveError::Interrupted { .. })));
    /// # Ok::<(), CollectiveError>(())
    /// ```
    pub fn breaker(&self) -> Breaker {
        let interrupt = Arc::clone(&self.mesh.interrupt);
        Arc::new(move || interrupt.raise())
    }

    /// Has a function called at least every 100 ms while a collective operation waits, by the thread that called the
    /// operation. If it says true, the operation ends as by [`breaker`](Self::breaker). For a caller that
    /// learns of a reason to stop only if it looks, such as an interpreter with signals.
    pub fn watch(&mut self, ends: impl FnMut() -> bool + Send + 'static) {
        self.mesh.watch = Some(Watch::new(ends));
    }

    /// Says whether the operations that follow run beside a thread that computes.
    pub(crate) fn set_beside(&mut self, beside: bool) {
        self.mesh.beside = beside;
    }

    /// Messages to and from other ranks, for any thread and with the time limit of the group; see [`PointToPoint`].
    pub fn point_to_point(&self) -> PointToPoint {
        self.messages.0.clone().with_timeout(self.options.timeout)
    }

    /// Time limit of an operation.
    pub fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Changes how long the operations that follow may take.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }

    /// Runs a collective operation on one buffer.
    pub(crate) fn perform<T: Element>(
        &mut self,
        operation: Operation,
        schedule: &Schedule,
        values: &mut [T],
        parts: &Parts,
        reduce: Option<ReduceOp>,
    ) -> Result<()> {
        let elements = match operation {
            Operation::AllGatherUnequal => 0,
            _ => values.len() as u64,
        };
        let buffers = Buffers::InPlace((values, parts));
        self.run_schedule(operation, elements, schedule, buffers, reduce)
    }

    /// The next collective call.
    pub(crate) fn next_call<T: Element>(&mut self, operation: Operation, elements: u64) -> Call {
        self.sequence += 1;
        Call {
            operation,
            element: T::TYPE,
            elements,
            sequence: self.sequence,
        }
    }

    /// Runs one operation and, if it fails, breaks the group here and at the peers.
    pub(crate) fn run_schedule<T: Element>(
        &mut self,
        operation: Operation,
        elements: u64,
        schedule: &Schedule,
        buffers: Buffers<'_, T>,
        reduce: Option<ReduceOp>,
    ) -> Result<()> {
        let call = self.next_call::<T>(operation, elements);
        self.attempt(call, self.options.timeout, |mesh, scratch| {
            exchange::run(mesh, schedule, buffers, reduce, scratch)
        })
    }

    /// Does something with the connections; if it fails, the group is broken here and at the peers.
    pub(crate) fn attempt<R>(
        &mut self,
        call: Call,
        timeout: Duration,
        act: impl FnOnce(&mut Mesh, &mut Scratch) -> Result<R>,
    ) -> Result<R> {
        if let Some(broken) = self.broken.get() {
            let error = broken.error();
            self.tell_peers();
            return Err(error);
        }
        let running = Running {
            call,
            started: Instant::now(),
            timeout,
        };
        self.mesh.running = Some(running);
        if self.mesh.interrupt.is_raised() {
            let error = running.interrupted(self.rank());
            self.set_broken(&error);
            return Err(error);
        }
        act(&mut self.mesh, &mut self.scratch).inspect_err(|error| self.set_broken(error))
    }

    /// The group is broken by this error: here, and at the peers.
    pub(crate) fn set_broken(&mut self, error: &CollectiveError) {
        let own = Break::new(error, self.rank());
        let broken = self.broken.get_or_init(|| own);
        self.messages.0.break_off(broken);
        self.tell_peers();
    }

    /// Tells the peers that the group is broken, unless they know.
    fn tell_peers(&mut self) {
        if let Some(broken) = self.broken.get()
            && !std::mem::replace(&mut self.peers_know, true)
        {
            self.mesh.abort(broken.suspect, broken.cause);
        }
    }

    /// Whether large buffers are reduced on shared buffers; the same on all ranks.
    pub(crate) fn has_shared_buffers(&self) -> bool {
        self.mesh.is_local() && self.world_size() <= shared_reduction::MOST_RANKS
    }

    /// Refuses a rank that the group does not have.
    pub(crate) fn check_rank(&self, what: &str, rank: u32) -> Result<()> {
        self.mesh.member.check_rank(what, rank)
    }

    /// Refuses a buffer that is not of the length that it has to be.
    pub(crate) fn check_length(&self, what: &str, found: usize, expected: usize) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(CollectiveError::Argument(format!(
            "{what} has {found} elements, but needs {expected}"
        )))
    }

    /// Number of elements of all ranks together, from that of each.
    pub(crate) fn of_all(&self, each: usize) -> usize {
        each * self.world_size() as usize
    }
}
