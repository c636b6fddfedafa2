//! Rules for the devices in a group, in the order of the checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use thiserror::Error;

use super::{Device, DeviceData, DeviceMap};

/// List of values, displayed as `[a, b]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckRow<T>(pub Vec<T>);

impl<T: fmt::Display> fmt::Display for CheckRow<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(T::to_string).collect();
        write!(formatter, "[{}]", texts.join(", "))
    }
}

impl CheckRow<String> {
    /// Formats the names like PyTorch: `['a', 'b']`.
    fn quoted(&self) -> String {
        let quoted = self.0.iter().map(|name| format!("'{name}'"));
        CheckRow(quoted.collect()).to_string()
    }
}

/// First rule that the devices in a group violate; see [`check`] for the order.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceFault {
    /// V1: a worker lists a device twice.
    #[error("Node {node} has duplicated devices\ndevices = {devices}")]
    DuplicatedDevices {
        /// Name of the worker.
        node: String,
        /// Devices that the worker lists.
        devices: CheckRow<Device>,
    },
    /// V2: a worker lists a device that it does not have.
    #[error(
        "Node {node} has devices with invalid indices\ndevices = {devices}\ndevice count = {count}"
    )]
    InvalidDevices {
        /// Name of the worker.
        node: String,
        /// Devices that the worker lists.
        devices: CheckRow<Device>,
        /// Number of accelerators that the worker has.
        count: u32,
    },
    /// V3: a worker has a device map for a worker that is not in the group.
    #[error(
        "Node {node} has invalid target node names in its device maps\ndevice maps = {}\nnode names = {}",
        .targets.quoted(),
        .names.quoted()
    )]
    UnknownTargets {
        /// Name of the worker that owns the maps.
        node: String,
        /// Workers for which the owner has maps.
        targets: CheckRow<String>,
        /// Names of the workers in the group.
        names: CheckRow<String>,
    },
    /// V4 to V8: a device map is not one-to-one, or does not match the workers.
    #[error(
        "Node {node} has {} in its device map for {target}\ndevice map = {map}{}",
        .fault.which(),
        .fault.owned()
    )]
    Map {
        /// Name of the worker that owns the map.
        node: String,
        /// Name of the worker that is the target of the map.
        target: String,
        /// Map that violates the rule.
        map: DeviceMap,
        /// Rule that the map violates.
        fault: MapFault,
    },
}

impl DeviceFault {
    /// Returns the worker whose lack of accelerators causes the violation.
    ///
    /// `None` if the violation has another reason.
    pub fn without_devices(&self) -> Option<&str> {
        match self {
            Self::InvalidDevices { node, count: 0, .. } => Some(node),
            Self::Map { node, fault, .. } if *fault == MapFault::Sources(Misfit::Absent(0)) => {
                Some(node)
            }
            Self::Map { target, fault, .. } if *fault == MapFault::Targets(Misfit::Absent(0)) => {
                Some(target)
            }
            _ => None,
        }
    }
}

/// First rule that a device map violates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapFault {
    /// V4: two devices are mapped to the same device.
    DuplicatedTargets,
    /// V5 and V6: the owner of the map does not have one of the source devices.
    Sources(Misfit),
    /// V7 and V8: the target does not have one of the target devices.
    Targets(Misfit),
}

impl MapFault {
    fn which(&self) -> &'static str {
        match self {
            Self::DuplicatedTargets => "duplicated target devices",
            Self::Sources(Misfit::Unlisted(_)) => "unexpected source devices",
            Self::Sources(Misfit::Absent(_)) => "source devices with invalid indices",
            Self::Targets(Misfit::Unlisted(_)) => "unexpected target devices",
            Self::Targets(Misfit::Absent(_)) => "target devices with invalid indices",
        }
    }

    /// Describes the devices of the worker that lacks a device in the map.
    fn owned(&self) -> String {
        match self {
            Self::DuplicatedTargets => String::new(),
            Self::Sources(misfit) | Self::Targets(misfit) => match misfit {
                Misfit::Unlisted(devices) => format!("\ndevices = {devices}"),
                Misfit::Absent(count) => format!("\ndevice count = {count}"),
            },
        }
    }
}

/// Reason why a worker does not have a device in a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misfit {
    /// V5 and V7: the worker lists its devices, and this device is not in the list.
    Unlisted(CheckRow<Device>),
    /// V6 and V8: the worker lists no devices, and has too few accelerators.
    Absent(u32),
}

/// Kind of a group: static or dynamic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// All members are known from the start.
    /// Maps for workers outside of the group are errors.
    Static,
    /// Members join and leave, so the target of a map may join later.
    Dynamic,
}

/// Member of a group with its devices, as input to the rules.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// Name of the member.
    pub name: &'a str,
    /// Devices that the member reported.
    pub data: &'a DeviceData,
}

/// Checks the devices and device maps in a group.
///
/// `nodes` must be ordered by id.
///
/// # Errors
///
/// Returns the first violated rule: V1 and V2 for every node, then V3 to V8 for every node. All
/// members therefore find the same violation.
pub fn check(nodes: &[Node<'_>], kind: GroupKind) -> Result<(), DeviceFault> {
    for node in nodes {
        check_devices(node)?;
    }
    let by_name: BTreeMap<&str, &DeviceData> =
        nodes.iter().map(|node| (node.name, node.data)).collect();
    for node in nodes {
        let targets = node.data.device_maps.keys();
        let is_unknown = |target: &String| !by_name.contains_key(target.as_str());
        if kind == GroupKind::Static && targets.clone().any(is_unknown) {
            return Err(DeviceFault::UnknownTargets {
                node: node.name.to_owned(),
                targets: CheckRow(targets.cloned().collect()),
                names: CheckRow(nodes.iter().map(|node| node.name.to_owned()).collect()),
            });
        }
        for (target, map) in &node.data.device_maps {
            check_map(node, target, map, by_name.get(target.as_str()).copied())?;
        }
    }
    Ok(())
}

fn check_devices(node: &Node<'_>) -> Result<(), DeviceFault> {
    let devices = &node.data.devices;
    let count = node.data.device_count;
    let name = || node.name.to_owned();
    if !are_distinct(devices.iter().copied()) {
        return Err(DeviceFault::DuplicatedDevices {
            node: name(),
            devices: CheckRow(devices.clone()),
        });
    }
    if !devices.iter().all(|device| device.is_among(count)) {
        return Err(DeviceFault::InvalidDevices {
            node: name(),
            devices: CheckRow(devices.clone()),
            count,
        });
    }
    Ok(())
}

/// Checks V4 to V8. V7 and V8 apply only if the target is in the group.
fn check_map(
    node: &Node<'_>,
    target: &str,
    map: &DeviceMap,
    at_target: Option<&DeviceData>,
) -> Result<(), DeviceFault> {
    let fault = if !are_distinct(map.targets()) {
        MapFault::DuplicatedTargets
    } else if let Some(misfit) = misfit(map.sources(), node.data) {
        MapFault::Sources(misfit)
    } else if let Some(misfit) = at_target.and_then(|data| misfit(map.targets(), data)) {
        MapFault::Targets(misfit)
    } else {
        return Ok(());
    };
    Err(DeviceFault::Map {
        node: node.name.to_owned(),
        target: target.to_owned(),
        map: map.clone(),
        fault,
    })
}

fn misfit(named: impl Iterator<Item = Device>, owner: &DeviceData) -> Option<Misfit> {
    let mut named = named;
    if !owner.devices.is_empty() {
        let unlisted = named.any(|device| !owner.devices.contains(&device));
        return unlisted.then(|| Misfit::Unlisted(CheckRow(owner.devices.clone())));
    }
    let absent = named.any(|device| !device.is_among(owner.device_count));
    absent.then_some(Misfit::Absent(owner.device_count))
}

fn are_distinct(devices: impl Iterator<Item = Device>) -> bool {
    let mut seen = BTreeSet::new();
    let mut devices = devices;
    devices.all(|device| seen.insert(device))
}

#[cfg(test)]
mod tests;
