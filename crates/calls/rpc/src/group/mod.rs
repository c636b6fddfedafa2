//! Groups of workers that meet in a store: static ones, whose members all come at the beginning, and
//! dynamic ones, whose members come and go.
//!
//! [`Group`] is what an agent holds. It knows who is there ([`Group::view`]), tells of changes
//! ([`Group::on_change`]) and ends well ([`Group::shutdown_barrier`], [`Group::leave`]). What the
//! members decide by is in `rdzv_rpc_proto::directory`; here are the store and the threads.
//!
//! Reading order: `keys` (what is where in the store), `static_group` and `note`, `shutdown`;
//! `dynamic`.

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

pub use rdzv_rpc_proto::directory::{Change, GroupView, Member, NotUnique};
use rdzv_rpc_proto::worker::WorkerId;
use rdzv_store::Store;

use crate::RpcError;
use dynamic::DynamicGroup;
use static_group::StaticGroup;

/// How long a worker of a dynamic group may be silent before the others take it for dead.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(5);

/// The shortest lease: shorter than this, a busy machine looks like a dead one.
pub const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// What an agent is told of its group.
#[derive(Debug, Clone)]
pub enum GroupChange {
    /// This is the group from now on. [`GroupView::changes_since`] tells what is new.
    View(Arc<GroupView>),
    /// No more will be told: this worker was taken for dead by the others, or the store is gone.
    Detached(RpcError),
}

/// Who listens for changes.
pub type OnChange = dyn Fn(&GroupChange) + Send + Sync;

/// The group of an agent.
#[derive(Debug)]
pub struct Group(Kind);

#[derive(Debug)]
enum Kind {
    Static(StaticGroup),
    Dynamic(DynamicGroup),
}

/// A number for one life of a worker.
pub fn new_incarnation() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

impl Group {
    /// Forms a static group of `world_size` workers: returns when all are there and agree.
    ///
    /// The worker's contact has to be ready to be connected to.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` before anything is sent, if the world size is 0 or the rank not below it.
    /// Else, as a rule on all workers alike: `GroupMismatch` (world sizes, a dynamic group),
    /// `DuplicateName`, `DuplicateId`, `DeviceMap`, `Deadline` naming the ranks that did not come;
    /// `Store` if the store fails.
    pub fn form(
        store: Arc<dyn Store>,
        me: Member,
        world_size: u32,
        deadline: Duration,
    ) -> Result<Self, RpcError> {
        let formed = static_group::form(store, me, world_size, deadline)?;
        Ok(Self(Kind::Static(formed)))
    }

    /// Joins a dynamic group, or begins it. The lease has to be the same on all workers.
    ///
    /// The worker's contact has to be ready to be connected to. Two connections to the store are
    /// opened, each with a thread: one renews the lease, one waits for changes.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a lease that is too short, `GroupMismatch` if the group is static,
    /// `DuplicateName` or `DuplicateId` if a living member has the name or id, `DeviceMap` if the
    /// device maps do not fit, `Deadline` if it takes too long, `Store` if the store fails. The
    /// group is as it was then.
    pub fn join(
        store: Arc<dyn Store>,
        me: Member,
        lease: Duration,
        deadline: Duration,
    ) -> Result<Self, RpcError> {
        let joined = DynamicGroup::join(store, me, lease, deadline)?;
        Ok(Self(Kind::Dynamic(joined)))
    }

    /// The group as it is now.
    pub fn view(&self) -> Arc<GroupView> {
        match &self.0 {
            Kind::Static(group) => Arc::clone(&group.view),
            Kind::Dynamic(group) => group.view(),
        }
    }

    /// Whether all members were known from the beginning.
    pub fn is_static(&self) -> bool {
        matches!(self.0, Kind::Static(_))
    }

    /// Calls back at once with the group as it is, and then after each change, from a thread of the
    /// group. Changes in quick succession may be told as one. What is called must not add listeners.
    pub fn on_change(&self, listener: impl Fn(&GroupChange) + Send + Sync + 'static) {
        match &self.0 {
            // It never changes.
            Kind::Static(group) => listener(&GroupChange::View(Arc::clone(&group.view))),
            Kind::Dynamic(group) => group.on_change(Box::new(listener)),
        }
    }

    /// Leaves a dynamic group: the others are told, the name and the id are free. Nothing happens in
    /// a static group, or for the second time.
    ///
    /// # Errors
    ///
    /// `Store` if the store fails: the others will notice when the lease runs out.
    pub fn leave(&self) -> Result<(), RpcError> {
        match &self.0 {
            Kind::Static(_) => Ok(()),
            Kind::Dynamic(group) => group.leave(),
        }
    }

    /// Says that this worker waits for answers of these before it can end the group, so that nobody takes it
    /// for the one that all wait for. Nothing happens in a dynamic group.
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

    /// Ends a group in order. Static: waits until all workers call this, at most until the deadline;
    /// to be called once. Dynamic: leaves, without waiting for anybody.
    ///
    /// # Errors
    ///
    /// `Deadline` naming who is missing, in the same words on all workers that wait; `Store` if the
    /// store fails.
    pub fn shutdown_barrier(&self, deadline: Duration) -> Result<(), RpcError> {
        match &self.0 {
            Kind::Static(group) => shutdown::wait_for_all(group, deadline),
            Kind::Dynamic(group) => group.leave(),
        }
    }
}
