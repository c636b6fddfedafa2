//! Devices of workers, and maps between the devices of two workers.
//!
//! For each callee, a worker specifies where its devices appear. Before a group works, each member
//! checks the maps of all members, by the same rules in the same order. So all members find the
//! same error and report it in the same words.
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

/// Devices of one worker, as it reported them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceData {
    /// Number of accelerators of the worker (0 on a host without any).
    #[serde(default)]
    pub device_count: u32,
    /// Device maps by the name of the callee.
    #[serde(default)]
    pub device_maps: BTreeMap<String, DeviceMap>,
    /// Devices that the worker uses. If empty, it uses those that the maps name.
    #[serde(default)]
    pub devices: Vec<Device>,
}
