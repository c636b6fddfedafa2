//! Groups of workers that form in a store.
//!
//! In a static group, all members join at the beginning. In a dynamic group, members join and
//! leave.
//!
//! [`Group`] is the agent's handle. It knows the members ([`Group::view`]), reports changes
//! ([`Group::on_change`]) and ends cleanly ([`Group::shutdown_barrier`], [`Group::leave`]).
//! `rdzv_rpc_proto::directory` makes the decisions. This module accesses the store and runs the
//! threads.
//!
//! Reading order: `keys` (the keys in the store), `static_group` and `note`, `shutdown`; `dynamic`.

mod access;
mod dynamic;
mod failure;
mod keys;
mod limit;
mod note;
mod shutdown;
mod static_group;

use std::sync::Arc;
use std::time::Duration;

pub use rdzv_rpc_proto::directory::{GroupView, Member, NotUnique, ViewChange};
use rdzv_rpc_proto::worker::WorkerId;
use rdzv_store::Store;

use crate::RpcError;
use dynamic::DynamicGroup;
use static_group::StaticGroup;

/// Default time without a renewal after which a member counts as dead.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(5);

/// Minimum lease; with a shorter lease, members on a busy host may seem dead.
pub const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Report to an agent about its group.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum GroupChange {
    /// Current view of the group.
    ///
    /// [`GroupView::changes_since`] returns the differences.
    View(Arc<GroupView>),
    /// Last report: the other members removed this worker, or the store failed.
    Detached(RpcError),
}

/// Listener for changes.
pub type OnChange = dyn Fn(&GroupChange) + Send + Sync;

/// The group of an agent.
#[derive(Debug)]
pub struct Group(Kind);

#[derive(Debug)]
enum Kind {
    Static(StaticGroup),
    Dynamic(DynamicGroup),
}

/// Returns a random number that identifies one life of a worker.
pub fn new_incarnation() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

impl Group {
    /// Forms a static group of `world_size` workers.
    ///
    /// Blocks until all workers have joined and agree.
    ///
    /// The worker must already accept connections at its published address.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, without access to the store, if the world size is 0 or the rank is not
    /// below the world size. The other errors are usually the same on all workers: `GroupMismatch`
    /// (world sizes, a dynamic group), `DuplicateName`, `DuplicateId`, `DeviceMap`, `Deadline` with
    /// the missing ranks, and `Store` if the store fails.
    pub fn form(
        store: Arc<dyn Store>,
        me: Member,
        world_size: u32,
        deadline: Duration,
    ) -> Result<Self, RpcError> {
        let formed = static_group::form(store, me, world_size, deadline)?;
        Ok(Self(Kind::Static(formed)))
    }

    /// Joins a dynamic group, or starts it.
    ///
    /// The other members know this worker when [`await_confirmation`](Self::await_confirmation) has
    /// returned.
    ///
    /// The lease must be the same on all workers.
    ///
    /// The worker must already accept connections at its published address. This opens two
    /// connections to the store, each with a thread: one renews the lease, one waits for changes.
    ///
    /// # Errors
    ///
    /// After an error, this worker is not a member, or its membership ends with its lease:
    ///
    /// - `InvalidArgument` for a lease that is too short
    /// - `GroupMismatch` if the group is static
    /// - `DuplicateName` or `DuplicateId` if a living member has the name or id
    /// - `DeviceMap` if the device maps do not fit
    /// - `Deadline` if the join takes too long
    /// - `Store` if the store fails
    /// - `Internal` if a thread cannot start
    pub fn join(
        store: Arc<dyn Store>,
        me: Member,
        lease: Duration,
        deadline: Duration,
    ) -> Result<Self, RpcError> {
        let joined = DynamicGroup::join(store, me, lease, deadline)?;
        Ok(Self(Kind::Dynamic(joined)))
    }

    /// Waits until all members know this worker and its devices.
    ///
    /// In a static group, [`form`](Self::form) has already waited for that.
    ///
    /// # Errors
    ///
    /// `Deadline` with the members that did not confirm, `PeerLost` if the group has removed this
    /// worker, and `Store` if the store fails.
    pub fn await_confirmation(&self, deadline: Duration) -> Result<(), RpcError> {
        match &self.0 {
            Kind::Static(_) => Ok(()),
            Kind::Dynamic(group) => group.await_confirmation(deadline),
        }
    }

    /// Returns the current view of the group.
    pub fn view(&self) -> Arc<GroupView> {
        match &self.0 {
            Kind::Static(group) => Arc::clone(&group.view),
            Kind::Dynamic(group) => group.view(),
        }
    }

    /// `true` if all members were known from the beginning.
    pub fn is_static(&self) -> bool {
        matches!(self.0, Kind::Static(_))
    }

    /// Calls `listener` immediately with the current group, and after each change.
    ///
    /// The later calls come from a thread of the group. Changes in quick succession may be combined
    /// into one report. The listener must not add listeners.
    pub fn on_change(&self, listener: impl Fn(&GroupChange) + Send + Sync + 'static) {
        match &self.0 {
            // A static group never changes.
            Kind::Static(group) => listener(&GroupChange::View(Arc::clone(&group.view))),
            Kind::Dynamic(group) => group.on_change(Box::new(listener)),
        }
    }

    /// Leaves a dynamic group, and frees the name and the id.
    ///
    /// The other members are notified. In a static group, and on a second call, this does nothing.
    ///
    /// # Errors
    ///
    /// `Store` if the store fails. The other members then notice the departure when the lease
    /// expires.
    pub fn leave(&self) -> Result<(), RpcError> {
        match &self.0 {
            Kind::Static(_) => Ok(()),
            Kind::Dynamic(group) => group.leave(),
        }
    }

    /// Records the workers that must answer before this worker can end the group.
    ///
    /// With this record, the other workers usually do not blame this worker for the delay. In a
    /// dynamic group this does nothing.
    ///
    /// # Errors
    ///
    /// `Store` if the store fails.
    pub fn waits_for(&self, others: &[WorkerId]) -> Result<(), RpcError> {
        match &self.0 {
            Kind::Static(group) => shutdown::waits_for(group, others),
            Kind::Dynamic(_) => Ok(()),
        }
    }

    /// Ends a group cleanly.
    ///
    /// In a static group, waits up to the deadline until all workers call this; call it once. In a
    /// dynamic group, leaves without waiting.
    ///
    /// # Errors
    ///
    /// `Deadline` with the missing workers, with the same text on all waiting workers; `Store` if
    /// the store fails.
    pub fn shutdown_barrier(&self, deadline: Duration) -> Result<(), RpcError> {
        match &self.0 {
            Kind::Static(group) => shutdown::wait_for_all(group, deadline),
            Kind::Dynamic(group) => group.leave(),
        }
    }
}
