//! What is wrong with the devices of a group. The first line of each text is the reference's.

use std::fmt;

use thiserror::Error;

use super::{Device, DeviceMap};

/// Values in a row, printed `[a, b]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<T>(pub Vec<T>);

impl<T: fmt::Display> fmt::Display for Row<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(T::to_string).collect();
        write!(formatter, "[{}]", texts.join(", "))
    }
}

/// The first rule that the devices of a group break, in the order of the rules.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceFault {
    /// V1: a device is listed twice.
    #[error("Node {node} has duplicated devices\ndevices = {devices}")]
    DuplicatedDevices {
        /// Whose.
        node: String,
        /// Its list.
        devices: Row<Device>,
    },
    /// V2: a listed device does not exist there.
    #[error(
        "Node {node} has devices with invalid indices\ndevices = {devices}\ndevice count = {count}"
    )]
    InvalidDevices {
        /// Whose.
        node: String,
        /// Its list.
        devices: Row<Device>,
        /// How many accelerators it has.
        count: u32,
    },
    /// V3: a map is for somebody who is not in the group.
    #[error(
        "Node {node} has invalid target node names in its device maps\ndevice maps = {targets}\nnode names = {names}"
    )]
    UnknownTargets {
        /// Whose.
        node: String,
        /// Whom it has maps for.
        targets: Row<String>,
        /// Who is there.
        names: Row<String>,
    },
    /// V4: two devices are mapped to one.
    #[error(
        "Node {node} has duplicated target devices in its device map for {target}\ndevice map = {map}"
    )]
    DuplicatedTargets {
        /// Whose.
        node: String,
        /// For whom.
        target: String,
        /// The map.
        map: DeviceMap,
    },
    /// V5: a mapped device is not among those that its owner lists.
    #[error(
        "Node {node} has unexpected source devices in its device map for {target}\ndevice map = {map}\ndevices = {devices}"
    )]
    UnexpectedSources {
        /// Whose.
        node: String,
        /// For whom.
        target: String,
        /// The map.
        map: DeviceMap,
        /// What the node lists.
        devices: Row<Device>,
    },
    /// V6: a mapped device does not exist.
    #[error(
        "Node {node} has source devices with invalid indices in its device map for {target}\ndevice map = {map}\ndevice count = {count}"
    )]
    InvalidSources {
        /// Whose.
        node: String,
        /// For whom.
        target: String,
        /// The map.
        map: DeviceMap,
        /// How many accelerators the node has.
        count: u32,
    },
    /// V7: a target device is not among those that the target lists.
    #[error(
        "Node {node} has unexpected target devices in its device map for {target}\ndevice map = {map}\ndevices = {devices}"
    )]
    UnexpectedTargets {
        /// Whose.
        node: String,
        /// For whom.
        target: String,
        /// The map.
        map: DeviceMap,
        /// What the target lists.
        devices: Row<Device>,
    },
    /// V8: a target device does not exist.
    #[error(
        "Node {node} has target devices with invalid indices in its device map for {target}\ndevice map = {map}\ndevice count = {count}"
    )]
    InvalidTargets {
        /// Whose.
        node: String,
        /// For whom.
        target: String,
        /// The map.
        map: DeviceMap,
        /// How many accelerators the target has.
        count: u32,
    },
}
