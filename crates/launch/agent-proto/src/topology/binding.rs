//! The processors that a worker is bound to with `--numa-binding`: the processors near its device.
//!
//! A worker's device is the visible one whose index is its local rank. The rules are
//! PyTorch's, with one difference: nodes on which this process may use no processor (nodes that
//! are possible but absent, or have memory only) are no candidates for `socket`, where PyTorch
//! fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use thiserror::Error;

use super::CpuList;

/// The mode of `--numa-binding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindingMode {
    /// To all processors of the device's NUMA node.
    Node,
    /// To all processors of the socket that node belongs to.
    Socket,
    /// To a share of the node's cores that no other device's worker has.
    Exclusive,
    /// To the cores of the node that share one last-level cache, another one for each device as
    /// long as there are enough.
    CoreComplex,
}

impl BindingMode {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Socket => "socket",
            Self::Exclusive => "exclusive",
            Self::CoreComplex => "core-complex",
        }
    }

    /// By its name on the command line.
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

/// Description of one processor; each part is needed by one mode only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Processor {
    /// The number of its socket. Negative where the machine does not say.
    pub package: Option<i32>,
    /// The processors of its core, itself among them.
    pub core: CpuList,
    /// The processors that share its cache of the highest level for data.
    pub cache: CpuList,
}

/// A machine as far as binding needs it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// The processors that this process may use.
    pub allowed: CpuList,
    /// The processors of each NUMA node, whether this process may use them or not.
    pub nodes: BTreeMap<u32, CpuList>,
    /// The processors, by number; those that may be used at least.
    pub processors: BTreeMap<u32, Processor>,
    /// The NUMA node of each visible device, by the device's index. A machine that does not say is
    /// one with a single node, 0.
    pub devices: Vec<u32>,
}

/// Processors that one worker is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The processors that it may use; never empty.
    pub processors: CpuList,
    /// The NUMA node of its device.
    pub node: u32,
    /// The reason, in a few words.
    pub reason: String,
}

/// The reason that a worker cannot be bound.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BindingError {
    /// There is no device at all. (PyTorch's text.)
    #[error("No accelerator available for NUMA binding")]
    NoDevice,
    /// More workers than devices.
    #[error(
        "local rank {local_rank} has no device to be bound to: {devices} devices are visible; \
         start at most as many workers, or leave out --numa-binding"
    )]
    TooFewDevices {
        /// The first worker without one.
        local_rank: u32,
        /// Number of devices.
        devices: usize,
    },
    /// The node of the device is not known to the kernel.
    #[error(
        "the processors of NUMA node {node}, at which device {device} is, are not known: the \
         kernel lists no such node"
    )]
    UnknownNode {
        /// The node.
        node: u32,
        /// The device there.
        device: u32,
    },
    /// The affinity mask excludes all of them.
    #[error(
        "this process may use no processor of NUMA node {node}, at which device {device} is: it is \
         restricted to the processors {allowed} (taskset, cgroup cpuset or the scheduler of the \
         cluster); allow some of {listed}, or leave out --numa-binding"
    )]
    NoneAllowed {
        /// The node.
        node: u32,
        /// The device there.
        device: u32,
        /// The affinity mask.
        allowed: CpuList,
        /// The processors of the node.
        listed: CpuList,
    },
    /// `exclusive` needs a core for each device.
    #[error(
        "only {cores} physical cores of NUMA node {node} may be used, but there are {devices} \
         devices at it: --numa-binding exclusive needs one for each; use node"
    )]
    TooFewCores {
        /// The node.
        node: u32,
        /// Number of cores that may be used.
        cores: usize,
        /// Number of devices at the node.
        devices: usize,
    },
    /// The machine does not say what the mode needs to know.
    #[error(
        "the kernel does not say {fact} of processor {processor} (a virtual machine?): use \
         --numa-binding node"
    )]
    Unsaid {
        /// `the socket`, `the core`, `the caches`.
        fact: &'static str,
        /// The processor.
        processor: u32,
    },
}

/// The processors for the worker with this local rank.
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
    let at = format!("device {device} is at NUMA node {node}");
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
            let reason = format!(
                "{at}, whose {} cores are divided among {devices} devices",
                cores.len()
            );
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
            // Stable: those of equal size stay in the order of their lowest processor.
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

/// The allowed processors of all nodes of the socket that `lowest` belongs to, and its number.
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
        // A node belongs to one socket, so any of its processors will do.
        let Some(lowest) = allowed.first() else {
            continue;
        };
        if package(lowest)? == socket {
            processors.extend(allowed.iter());
        }
    }
    Ok((processors, socket))
}

/// Processors by what they share, in the order of the lowest processor that shares it (whether it
/// may be used or not).
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

/// The index of a device among those of its node, and their number.
fn position(device: u32, node: u32, topology: &Topology) -> (usize, usize) {
    let same = |(_, of): &(usize, &u32)| **of == node;
    let devices = topology.devices.iter().enumerate().filter(same);
    let before = |(index, _): &(usize, &u32)| *index < device as usize;
    let position = devices.clone().filter(before).count();
    (position, devices.count())
}

/// The part of `cores` for the device at `position` among `devices`: the first ones get one more
/// where it does not divide. None if there is not one for each.
fn share(position: usize, devices: usize, cores: usize) -> Option<std::ops::Range<usize>> {
    let (each, remainder) = (cores / devices, cores % devices);
    let start = position * each + position.min(remainder);
    (each > 0).then(|| start..start + each + usize::from(position < remainder))
}
