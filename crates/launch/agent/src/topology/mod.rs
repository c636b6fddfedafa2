//! Processors, their limits and accelerators of this machine, and which belongs to which.
//!
//! Only files of `/proc` and `/sys` are read, never a driver's library: what a launch has to know
//! (how many devices, their PCI addresses and UUIDs) is in there, and a library would have to be
//! found, loaded and initialised first, which takes longer than everything else that we do before
//! workers run. The decisions are made in [`rdzv_agent_proto::topology`].
//!
//! | file | reads |
//! |---|---|
//! | `tree` | a file below `/`, or below a test's directory |
//! | `processors` | the affinity mask, the quotas of our control groups, NUMA nodes, sockets, cores, caches |
//! | `sysfs_devices` | accelerators |

mod processors;
mod sysfs_devices;
mod tree;

use rdzv_agent_proto::topology::{
    Accelerators, Binding, BindingError, BindingMode, CpuLimit, CpuList, Topology, Visible,
    VisibleLists, bind,
};
use thiserror::Error;

use self::tree::Tree;

/// The hardware of a machine. Nothing is cached: each call reads the files again.
#[derive(Debug, Clone)]
pub struct Hardware {
    tree: Tree,
    /// The affinity mask in place of this process's own.
    affinity: Option<CpuList>,
}

/// Why workers cannot be bound to processors.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// The machine does not have what they need.
    #[error(transparent)]
    Binding(#[from] BindingError),
    /// A device is named in a way that only the driver's library could resolve.
    #[error(
        "local rank {local_rank} sees a device that CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES \
         names by a UUID which /proc does not resolve: name it by its index, or leave out \
         --numa-binding"
    )]
    UnknownDevice {
        /// The worker.
        local_rank: u32,
    },
    /// A file of `/proc` or `/sys` cannot be understood.
    #[error("{path}: {problem}; leave out --numa-binding")]
    Unreadable {
        /// Its path.
        path: String,
        /// The fault in it.
        problem: String,
    },
}

impl Hardware {
    /// The machine that this process is on.
    pub fn of_this_machine() -> Self {
        Self {
            tree: Tree::new("/"),
            affinity: None,
        }
    }

    /// A machine whose `/proc` and `/sys` have been put below a directory, and a process there that
    /// may use these processors.
    pub fn described_by(root: impl Into<std::path::PathBuf>, affinity: CpuList) -> Self {
        Self {
            tree: Tree::new(root),
            affinity: Some(affinity),
        }
    }

    /// The processors that this process may use: its affinity mask, which its cpuset is part of.
    pub fn affinity(&self) -> CpuList {
        self.affinity.clone().unwrap_or_else(processors::affinity)
    }

    /// The tightest limit on processor time that control groups put on this process.
    pub fn cpu_limit(&self) -> Option<CpuLimit> {
        processors::cpu_limit(&self.tree)
    }

    /// All accelerators, visible or not.
    pub fn accelerators(&self) -> Accelerators {
        sysfs_devices::accelerators(&self.tree)
    }

    /// The binding of each of `local_world_size` workers, by local rank.
    ///
    /// # Errors
    ///
    /// If one of them cannot be bound, none is: a job with one worker on the wrong node is slow in
    /// a way that nobody finds.
    pub fn bind(
        &self,
        mode: BindingMode,
        lists: &VisibleLists,
        local_world_size: u32,
    ) -> Result<Vec<Binding>, PlacementError> {
        let accelerators = self.accelerators();
        let Some((_, visible)) = accelerators.current(lists) else {
            return Err(BindingError::NoDevice.into());
        };
        let topology = Topology {
            allowed: self.affinity(),
            nodes: processors::nodes(&self.tree)?,
            ..self.with_devices(&visible)?
        };
        let topology = processors::describe(&self.tree, mode, topology)?;
        (0..local_world_size)
            .map(|local_rank| bind(mode, local_rank, &topology).map_err(PlacementError::from))
            .collect()
    }

    fn with_devices(&self, visible: &[Visible<'_>]) -> Result<Topology, PlacementError> {
        let node = |(local_rank, device): (u32, &Visible<'_>)| match device {
            Visible::Device(device) => sysfs_devices::numa_node(&self.tree, device),
            Visible::Unresolved => Err(PlacementError::UnknownDevice { local_rank }),
        };
        Ok(Topology {
            devices: (0..).zip(visible).map(node).collect::<Result<_, _>>()?,
            ..Topology::default()
        })
    }
}
