//! Devices of workers, and maps between the devices of two workers.
//!
//! A worker can specify for each callee the callee's devices on which its tensors arrive. When a
//! static group forms, each member checks the maps of all members, with the same rules in the same
//! order. All members therefore find the same error and report it with the same text. In a dynamic
//! group, a new member checks the maps.
//!
//! * [`spec`]: a device; [`map`]: a map between the devices of two workers.
//! * [`mod@check`]: the rules V1 to V8, and the errors for a broken rule.
//! * [`reverse`]: the maps for replies, and all devices that a worker uses.

pub mod check;
pub mod map;
pub mod reverse;
pub mod spec;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use check::{DeviceFault, GroupKind, MapFault, Misfit, Node, check};
pub use map::{DeviceMap, NotOneToOne};
pub use reverse::{device_list, reverse_maps};
pub use spec::{BadDevice, Device, DeviceType};

/// Devices that a worker reports to the group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceData {
    /// Number of accelerators that the worker can use (0 without a backend).
    #[serde(default)]
    pub device_count: u32,
    /// Device maps by callee name.
    #[serde(default)]
    pub device_maps: BTreeMap<String, DeviceMap>,
    /// Devices that the worker uses; if empty, the devices in the maps.
    #[serde(default)]
    pub devices: Vec<Device>,
}
