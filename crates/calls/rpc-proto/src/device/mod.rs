//! Devices of workers, and which device of one worker is which of another.
//!
//! A worker says for each callee where tensors of its own devices shall appear there. Before a
//! group works, all its members check the maps of all, by the same rules in the same order, so that
//! each comes to the same verdict with the same words.
//!
//! * [`spec`]: a device; [`map`]: a map between the devices of two workers.
//! * [`mod@check`]: the rules V1 to V8, and the errors for a breach.
//! * [`reverse`]: the maps for replies, and the devices that a worker uses in all.

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

/// What one worker has told of its devices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceData {
    /// How many accelerators it has (0 on a host without any).
    #[serde(default)]
    pub device_count: u32,
    /// By the name of a callee: where its own devices appear there.
    #[serde(default)]
    pub device_maps: BTreeMap<String, DeviceMap>,
    /// The devices that it wants to use; empty means those that the maps name.
    #[serde(default)]
    pub devices: Vec<Device>,
}
