//! Membership of one rank in a group, and code that all operations share.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rdzv_store::{Breaker, Store};

use crate::bootstrap::{self, GroupOptions};
use crate::broken::Break;
use crate::call::{Call, GroupOperation};
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

/// Membership of one rank in a group of cooperating processes.
///
/// Dropping the membership leaves the group. Ranks that still wait for this rank get an error.
#[derive(Debug)]
pub struct ProcessGroup {
    mesh: Mesh,
    /// Options of this group and of the next one.
    pub(crate) options: GroupOptions,
    /// Number of collective operations that have been called.
    sequence: u64,
    /// First error of the group, if any.
    broken: Arc<OnceLock<Break>>,
    /// `true` if this rank has sent the error on the collective connections.
    peers_know: bool,
    /// Buffer for received values before they are combined or copied.
    scratch: Scratch,
    messages: Membership,
}

impl ProcessGroup {
    /// Joins the group of all ranks in this store.
    ///
    /// This returns when all ranks have joined. If ranks are missing after the timeout, the error
    /// names them. The timeout also applies to later operations, until it is
    /// [set](Self::set_timeout) again.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`] if an argument is invalid, the store or the system fails, or ranks are
    /// missing when the timeout passes. A rank also cannot join twice, or with another world size.
    pub fn new(store: &dyn Store, rank: u32, world_size: u32, timeout: Duration) -> Result<Self> {
        let options = GroupOptions {
            timeout,
            ..GroupOptions::default()
        };
        Self::with_options(store, rank, world_size, &options)
    }

    /// Joins a group with a custom name, address or other options.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new).
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

    /// Forms the group again after a failure, with the next epoch.
    ///
    /// All ranks must call this. A new process that replaces a rank joins with
    /// [`GroupOptions::epoch`], which the other ranks know from [`ProcessGroup::epoch`]. Like
    /// [`ProcessGroup::new`], this returns when all ranks have joined. Ranks that still wait for
    /// this rank in the old group get an error immediately.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new).
    pub fn rebuild(self, store: &dyn Store) -> Result<Self> {
        let options = GroupOptions {
            epoch: self.options.epoch + 1,
            ..self.options.clone()
        };
        let (rank, world_size) = (self.rank(), self.world_size());
        drop(self);
        Self::with_options(store, rank, world_size, &options)
    }

    /// Returns the sequence number of this group among groups of the same name.
    ///
    /// By default, the first group has number 0.
    pub fn epoch(&self) -> u64 {
        self.options.epoch
    }

    /// Returns the rank of this process in the group.
    pub fn rank(&self) -> u32 {
        self.mesh.member.rank
    }

    /// Returns the number of ranks in the group.
    pub fn world_size(&self) -> u32 {
        self.mesh.member.world_size
    }

    /// Returns a function that interrupts the current operation.
    ///
    /// All later operations fail with [`CollectiveError::Interrupted`] or
    /// [`CollectiveError::Broken`]. The other ranks are notified at the latest when the next
    /// operation fails. To interrupt the joining of a group, use
    /// [`StoreConnection::breaker`](rdzv_store::StoreConnection::breaker).
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

    /// Registers a function that can interrupt waiting operations.
    ///
    /// The thread that waits in a collective operation calls the function about every 100 ms. If
    /// the function returns `true`, the operation is interrupted as with
    /// [`breaker`](Self::breaker). This is for callers that must poll for a reason to stop, such as
    /// an interpreter that handles signals.
    pub fn watch(&mut self, ends: impl FnMut() -> bool + Send + 'static) {
        self.mesh.watch = Some(Watch::new(ends));
    }

    /// Sets whether later operations run beside a computing thread.
    pub(crate) fn set_beside(&mut self, beside: bool) {
        self.mesh.beside = beside;
    }

    /// Returns a handle for sending and receiving messages, on any thread.
    ///
    /// Its initial timeout is that of the group; see [`PointToPoint`].
    pub fn point_to_point(&self) -> PointToPoint {
        self.messages.0.clone().with_timeout(self.options.timeout)
    }

    /// Returns the timeout for operations.
    pub fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// Sets the timeout for later operations.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }

    /// Runs a collective operation on one buffer.
    pub(crate) fn perform<T: Element>(
        &mut self,
        operation: GroupOperation,
        schedule: &Schedule,
        values: &mut [T],
        parts: &Parts,
        reduce: Option<ReduceOp>,
    ) -> Result<()> {
        let elements = match operation {
            GroupOperation::AllGatherUnequal => 0,
            _ => values.len() as u64,
        };
        let buffers = Buffers::OneBuffer((values, parts));
        self.run_schedule(operation, elements, schedule, buffers, reduce)
    }

    pub(crate) fn next_call<T: Element>(
        &mut self,
        operation: GroupOperation,
        elements: u64,
    ) -> Call {
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
        operation: GroupOperation,
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

    /// Runs code on the connections.
    ///
    /// A failure breaks the group here and at the peers.
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

    /// Marks the group as broken by this error, here and at the peers.
    pub(crate) fn set_broken(&mut self, error: &CollectiveError) {
        let own = Break::new(error, self.rank());
        let broken = self.broken.get_or_init(|| own);
        self.messages.0.break_off(broken);
        self.tell_peers();
    }

    /// Notifies the peers that the group is broken, unless they know it.
    fn tell_peers(&mut self) {
        if let Some(broken) = self.broken.get()
            && !std::mem::replace(&mut self.peers_know, true)
        {
            self.mesh.abort(broken.suspect, broken.cause);
        }
    }

    /// `true` if large buffers are reduced by [`shared_reduction`].
    ///
    /// All ranks return the same value.
    pub(crate) fn has_shared_buffers(&self) -> bool {
        self.mesh.is_local() && self.world_size() <= shared_reduction::MOST_RANKS
    }

    /// Refuses a rank outside the group.
    pub(crate) fn check_rank(&self, what: &str, rank: u32) -> Result<()> {
        self.mesh.member.check_rank(what, rank)
    }

    /// Refuses a buffer of the wrong length.
    pub(crate) fn check_length(&self, what: &str, found: usize, expected: usize) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(CollectiveError::Argument(format!(
            "{what} has length {found}, but needs length {expected}"
        )))
    }

    /// Returns the number of elements of all ranks together.
    pub(crate) fn of_all(&self, each: usize) -> usize {
        each * self.world_size() as usize
    }
}
