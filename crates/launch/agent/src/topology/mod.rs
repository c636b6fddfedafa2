//! Processors, limits on processor time, and accelerators of this machine.
//!
//! This module reads files of `/proc` and `/sys` and the affinity mask, but no driver's library.
//! The files contain everything that a launch needs, such as the PCI addresses and UUIDs of
//! devices. A library would have to be found, loaded and initialised, which takes longer than all
//! other work before workers run. [`rdzv_agent_proto::topology`] makes the decisions.
//!
//! | file | reads |
//! |---|---|
//! | `tree` | a file below `/`, or below a test's directory |
//! | `processors` | affinity mask, quotas of control groups, NUMA nodes, sockets, cores, caches |
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

/// Hardware of a machine; each call reads the files again, without a cache.
#[derive(Debug, Clone)]
pub struct Hardware {
    tree: Tree,
    /// Affinity mask that replaces the one of this process.
    affinity: Option<CpuList>,
}

/// Reason why workers cannot be bound to processors.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The machine or the affinity mask of this process does not allow the binding.
    #[error(transparent)]
    Binding(#[from] BindingError),
    /// The name of a device can only be resolved by the driver's library.
    #[error(
        "the UUID of device {local_rank} in CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES is unknown \
         in /proc and /sys: specify the device by its index, or omit --numa-binding"
    )]
    UnknownDevice {
        /// Local rank of the worker.
        local_rank: u32,
    },
    /// A file of `/proc` or `/sys` cannot be read or parsed.
    #[error("{path}: {problem}; omit --numa-binding")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// Fault in the file.
        problem: String,
    },
}

impl Hardware {
    /// Returns the machine that this process runs on.
    pub fn of_this_machine() -> Self {
        Self {
            tree: Tree::new("/"),
            affinity: None,
        }
    }

    /// Returns a machine that files below `root` describe.
    /// `root` contains its `/proc` and `/sys`. `affinity` lists the processors that a process there
    /// may use.
    pub fn described_by(root: impl Into<std::path::PathBuf>, affinity: CpuList) -> Self {
        Self {
            tree: Tree::new(root),
            affinity: Some(affinity),
        }
    }

    /// Returns the processors that this process may use.
    /// This is its affinity mask, which its cpuset limits.
    pub fn affinity(&self) -> CpuList {
        self.affinity.clone().unwrap_or_else(processors::affinity)
    }

    /// Returns the control groups' tightest limit on this process's CPU time.
    pub fn cpu_limit(&self) -> Option<CpuLimit> {
        processors::cpu_limit(&self.tree)
    }

    /// Returns all accelerators, visible or not.
    pub fn accelerators(&self) -> Accelerators {
        sysfs_devices::accelerators(&self.tree)
    }

    /// Returns the binding of each of `local_world_size` workers, by local rank.
    ///
    /// # Errors
    ///
    /// Returns an error, and binds no worker, if one worker cannot be bound. A job with one worker
    /// on the wrong NUMA node would be slow for a reason that is hard to find.
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
