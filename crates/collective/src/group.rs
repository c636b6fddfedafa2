//! The process group: one rank's membership, and the frame that all operations share.

use std::time::{Duration, Instant};

use rdzv_store::Store;

use crate::bootstrap::{self, GroupOptions};
use crate::call::{Call, Operation};
use crate::element::Element;
use crate::error::CollectiveError;
use crate::exchange;
use crate::mesh::{Mesh, Running};
use crate::reduce::Reduce;
use crate::schedule::Schedule;

/// One rank's membership in a group of processes that work on the same thing.
///
/// Dropping it leaves the group; ranks that still wait for this one get an error.
#[derive(Debug)]
pub struct ProcessGroup {
    mesh: Mesh,
    timeout: Duration,
    /// How many operations have been called.
    sequence: u64,
    /// The first error, once there was one.
    broken: Option<String>,
    /// What arrives, before it is combined; at most one message.
    scratch: Vec<u8>,
}

impl ProcessGroup {
    /// Joins the group of all ranks in this store. Returns when all ranks have joined, or names those
    /// that have not within the timeout. The timeout is that of every later operation as well.
    pub fn new(
        store: &dyn Store,
        rank: u32,
        world_size: u32,
        timeout: Duration,
    ) -> Result<Self, CollectiveError> {
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
    ) -> Result<Self, CollectiveError> {
        Ok(Self {
            mesh: bootstrap::join(store, rank, world_size, options)?,
            timeout: options.timeout,
            sequence: 0,
            broken: None,
            scratch: Vec::new(),
        })
    }

    /// This process's number in the group.
    pub fn rank(&self) -> u32 {
        self.mesh.member().rank
    }

    /// How many ranks the group has.
    pub fn world_size(&self) -> u32 {
        self.mesh.member().world_size
    }

    /// How long an operation may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Changes how long the operations that follow may take.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Carries out one operation and, if it fails, breaks the group here and at the peers.
    pub(crate) fn perform<T: Element>(
        &mut self,
        operation: Operation,
        schedule: &Schedule,
        values: &mut [T],
        reduce: Option<Reduce>,
    ) -> Result<(), CollectiveError> {
        if let Some(first) = &self.broken {
            return Err(CollectiveError::Broken {
                first: first.clone(),
            });
        }
        self.sequence += 1;
        let running = Running {
            call: Call {
                operation,
                element: T::TYPE,
                elements: values.len() as u64,
                sequence: self.sequence,
            },
            started: Instant::now(),
            timeout: self.timeout,
        };
        let (mesh, scratch) = (&mut self.mesh, &mut self.scratch);
        exchange::run(mesh, &running, schedule, values, reduce, scratch).inspect_err(|error| {
            let (suspect, cause) = error.blame(self.mesh.member().rank);
            self.mesh.abort(suspect, cause);
            self.broken = Some(error.to_string());
        })
    }
}
