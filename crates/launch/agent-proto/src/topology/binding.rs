//! The processors near a worker's device, for `--numa-binding`.
//!
//! The agent binds the worker to them.
//!
//! A worker's device is the visible one whose index is its local rank. The rules are PyTorch's,
//! with one difference. PyTorch fails for `socket` if this process may use no processor of some
//! node (a node that is possible but absent, or has memory only). rdzv ignores such nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rdzv_core::quantity::count;
use thiserror::Error;

use super::CpuList;

/// The mode of `--numa-binding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindingMode {
    /// Bind to all usable processors of the device's NUMA node.
    Node,
    /// Bind to all usable processors of the socket of that node.
    Socket,
    /// Bind to a share of the NUMA node's cores that no other device's worker gets.
    Exclusive,
    /// Bind to the cores of the node that share one last-level cache.
    /// Each device gets a different cache while there are enough.
    CoreComplex,
}

impl BindingMode {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Socket => "socket",
            Self::Exclusive => "exclusive",
            Self::CoreComplex => "core-complex",
        }
    }

    /// Returns the mode with this name on the command line.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Node, Self::Socket, Self::Exclusive, Self::CoreComplex]
            .into_iter()
            .find(|mode| mode.name() == name)
    }
}

impl fmt::Display for BindingMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Description of one processor; each binding mode needs at most one field.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Processor {
    /// Number of the socket, which may be negative; `None` if not reported.
    pub package: Option<i32>,
    /// Processors of the same core, including this one.
    pub core: CpuList,
    /// Processors that share the highest-level data cache with this one.
    pub cache: CpuList,
}

/// The part of a machine's topology that binding needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// Processors that this process may use.
    pub allowed: CpuList,
    /// Processors of each NUMA node, whether this process may use them or not.
    pub nodes: BTreeMap<u32, CpuList>,
    /// The usable processors by number; empty if the binding does not need them.
    pub processors: BTreeMap<u32, Processor>,
    /// NUMA node of each visible device, by the device's index.
    /// It is 0 for a device whose node the machine does not report.
    pub devices: Vec<u32>,
}

/// Processors that one worker is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Processors that the worker may use; never empty.
    pub processors: CpuList,
    /// NUMA node of the worker's device.
    pub node: u32,
    /// Reason, in a few words.
    pub reason: String,
}

/// The reason why a worker cannot be bound.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BindingError {
    /// No device is visible. The text is PyTorch's.
    #[error("No accelerator available for NUMA binding")]
    NoDevice,
    /// There are more workers than devices.
    #[error(
        "local rank {local_rank} has no device, because the number of visible devices is \
         {devices}; start at most one worker per device, or omit --numa-binding"
    )]
    TooFewDevices {
        /// First worker without a device.
        local_rank: u32,
        /// Number of devices.
        devices: usize,
    },
    /// The kernel does not list the NUMA node of the device.
    #[error(
        "cannot find the processors of NUMA node {node} of device {device}: the kernel does not \
         list this node"
    )]
    UnknownNode {
        /// The node.
        node: u32,
        /// The device at that node.
        device: u32,
    },
    /// The affinity mask excludes all processors of the node.
    #[error(
        "this process cannot use any processor of NUMA node {node} of device {device}: it is \
         restricted to the processors {allowed} (by taskset, a cgroup cpuset or the cluster's \
         scheduler); allow some of {listed}, or omit --numa-binding"
    )]
    NoneAllowed {
        /// The node.
        node: u32,
        /// The device at that node.
        device: u32,
        /// The affinity mask.
        allowed: CpuList,
        /// The processors of the node.
        listed: CpuList,
    },
    /// `exclusive` needs a core for each device.
    #[error(
        "NUMA node {node} has only {} for its {devices} devices, but --numa-binding exclusive \
         needs one core for each; use --numa-binding node",
        count(.cores, "usable physical core")
    )]
    TooFewCores {
        /// The node.
        node: u32,
        /// Number of cores that may be used.
        cores: usize,
        /// Number of devices at the node.
        devices: usize,
    },
    /// The kernel does not report a fact that the mode needs.
    #[error(
        "the kernel does not report {fact} of processor {processor}, as in some virtual machines; \
         use --numa-binding node"
    )]
    Unsaid {
        /// Name of the fact: `the socket`, `the core` or `the caches`.
        fact: &'static str,
        /// The processor.
        processor: u32,
    },
}

/// Returns the processors for the worker with this local rank.
pub fn bind(
    mode: BindingMode,
    local_rank: u32,
    topology: &Topology,
) -> Result<Binding, BindingError> {
    if topology.devices.is_empty() {
        return Err(BindingError::NoDevice);
    }
    let device = local_rank;
    let node = *topology
        .devices
        .get(device as usize)
        .ok_or(BindingError::TooFewDevices {
            local_rank,
            devices: topology.devices.len(),
        })?;
    let listed = topology
        .nodes
        .get(&node)
        .ok_or(BindingError::UnknownNode { node, device })?;
    let allowed = listed.intersection(&topology.allowed);
    let Some(lowest) = allowed.first() else {
        return Err(BindingError::NoneAllowed {
            node,
            device,
            allowed: topology.allowed.clone(),
            listed: listed.clone(),
        });
    };
    let at = format!("device {device} is on NUMA node {node}");
    let (processors, reason) = match mode {
        BindingMode::Node => (allowed, at),
        BindingMode::Socket => {
            let (processors, socket) = of_socket(lowest, topology)?;
            (processors, format!("{at} of socket {socket}"))
        }
        BindingMode::Exclusive => {
            let cores = grouped(&allowed, topology, "the core", |processor| &processor.core)?;
            let (position, devices) = position(device, node, topology);
            let range = share(position, devices, cores.len()).ok_or(BindingError::TooFewCores {
                node,
                cores: cores.len(),
                devices,
            })?;
            let reason = match devices {
                1 => format!(
                    "{at}, with {} for its only device",
                    count(cores.len(), "core")
                ),
                _ => format!(
                    "{at}, whose {} cores are divided among {devices} devices",
                    cores.len()
                ),
            };
            let own = cores.into_values().take(range.end).skip(range.start);
            (own.flatten().collect(), reason)
        }
        BindingMode::CoreComplex => {
            let caches = grouped(&allowed, topology, "the caches", |processor| {
                &processor.cache
            })?;
            let (position, _) = position(device, node, topology);
            let groups = caches.len();
            let mut largest_first: Vec<(u32, BTreeSet<u32>)> = caches.into_iter().collect();
            // The sort is stable: groups of equal size stay in the order of their lowest processor.
            largest_first.sort_by_key(|(_, group)| std::cmp::Reverse(group.len()));
            let (_, own) = largest_first.swap_remove(position % groups);
            let reason = format!("{at}, complex {} of {groups}", position % groups);
            (own.into_iter().collect(), reason)
        }
    };
    Ok(Binding {
        processors,
        node,
        reason,
    })
}

/// Returns the allowed processors of `lowest`'s socket, and its number.
fn of_socket(lowest: u32, topology: &Topology) -> Result<(CpuList, i32), BindingError> {
    let package = |processor: u32| {
        let found = topology.processors.get(&processor);
        found
            .and_then(|found| found.package)
            .ok_or(BindingError::Unsaid {
                fact: "the socket",
                processor,
            })
    };
    let socket = package(lowest)?;
    let mut processors = CpuList::new();
    for listed in topology.nodes.values() {
        let allowed = listed.intersection(&topology.allowed);
        // A node belongs to one socket, so any of its processors serves to find the socket.
        let Some(lowest) = allowed.first() else {
            continue;
        };
        if package(lowest)? == socket {
            processors.extend(allowed.iter());
        }
    }
    Ok((processors, socket))
}

/// Groups processors by the core or cache that they share.
/// The groups are ordered by the lowest processor of the core or cache, whether allowed or not.
fn grouped<'t>(
    allowed: &CpuList,
    topology: &'t Topology,
    fact: &'static str,
    shared: impl Fn(&'t Processor) -> &'t CpuList,
) -> Result<BTreeMap<u32, BTreeSet<u32>>, BindingError> {
    let mut groups: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for processor in allowed.iter() {
        let found = topology.processors.get(&processor);
        let lowest = found.and_then(|found| shared(found).first());
        let lowest = lowest.ok_or(BindingError::Unsaid { fact, processor })?;
        groups.entry(lowest).or_default().insert(processor);
    }
    Ok(groups)
}

/// Returns a device's index among its node's devices, and their count.
fn position(device: u32, node: u32, topology: &Topology) -> (usize, usize) {
    let same = |(_, of): &(usize, &u32)| **of == node;
    let devices = topology.devices.iter().enumerate().filter(same);
    let before = |(index, _): &(usize, &u32)| *index < device as usize;
    let position = devices.clone().filter(before).count();
    (position, devices.count())
}

/// Returns the part of `cores` for the device at `position` among `devices`.
/// If the cores do not divide evenly, the first devices get one more. `None` if there is less than
/// one core for each.
fn share(position: usize, devices: usize, cores: usize) -> Option<std::ops::Range<usize>> {
    let (each, remainder) = (cores / devices, cores % devices);
    let start = position * each + position.min(remainder);
    (each > 0).then(|| start..start + each + usize::from(position < remainder))
}
