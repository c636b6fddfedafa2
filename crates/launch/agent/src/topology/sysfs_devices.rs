//! Accelerators, from the files that their drivers publish.
//!
//! | maker | devices | UUID |
//! |---|---|---|
//! | NVIDIA | `/proc/driver/nvidia/gpus/⟨address⟩` | `GPU UUID:` in its `information` |
//! | AMD | `/sys/class/kfd/kfd/topology/nodes/⟨n⟩/properties` (1) | `unique_id` there |
//! | Intel | `/sys/bus/pci/drivers/{xe,i915}/⟨address⟩` (2) | – |
//!
//! 1. The fields `domain` and `location_id` give the address.
//! 2. Only devices of the class of display controllers without a display.
//!
//! NVIDIA's devices are in the order of their addresses. AMD's devices are in the order of their
//! nodes, as in AMD's runtime.

use std::collections::BTreeMap;

use rdzv_agent_proto::topology::{Accelerator, Accelerators};

use super::PlacementError;
use super::tree::Tree;

const NVIDIA: &str = "/proc/driver/nvidia/gpus";
const AMD: &str = "/sys/class/kfd/kfd/topology/nodes";
const INTEL: [&str; 2] = ["/sys/bus/pci/drivers/xe", "/sys/bus/pci/drivers/i915"];

/// PCI class "other display controller", which data-center devices have.
const NO_DISPLAY: &str = "0x038000";

pub(super) fn accelerators(tree: &Tree) -> Accelerators {
    Accelerators {
        nvidia: nvidia(tree),
        amd: amd(tree),
        intel: intel(tree),
    }
}

/// Returns the NUMA node of a device.
/// Returns 0 if the machine reports no node, as on machines with one node.
pub(super) fn numa_node(tree: &Tree, device: &Accelerator) -> Result<u32, PlacementError> {
    // For multi-function devices, function 0 reports the node, as in PyTorch.
    let slot = device.address.split('.').next().unwrap_or_default();
    let path = format!("/sys/bus/pci/devices/{slot}.0/numa_node");
    match tree.number(&path) {
        Some(node) => Ok(u32::try_from(node).unwrap_or(0)),
        None => Err(PlacementError::Unreadable {
            path,
            problem: "the file contains no number, so the processors near the device are unknown"
                .to_owned(),
        }),
    }
}

fn nvidia(tree: &Tree) -> Vec<Accelerator> {
    let names = tree.names(NVIDIA).into_iter();
    names
        .map(|name| {
            let information = tree.text(format!("{NVIDIA}/{name}/information"));
            let uuid = information.as_deref().and_then(uuid_line);
            Accelerator {
                address: name.to_lowercase(),
                uuid,
            }
        })
        .collect()
}

/// Returns the UUID in the line `GPU UUID: GPU-…`.
/// The line contains question marks until a program has opened the device.
fn uuid_line(information: &str) -> Option<String> {
    let mut lines = information.lines().filter_map(|line| line.split_once(':'));
    let (_, uuid) = lines.find(|(name, _)| name.trim() == "GPU UUID")?;
    let uuid = uuid.trim();
    (uuid.starts_with("GPU-") && !uuid.contains('?')).then(|| uuid.to_owned())
}

fn amd(tree: &Tree) -> Vec<Accelerator> {
    let mut numbers: Vec<u32> = tree
        .names(AMD)
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
        .into_iter()
        .filter_map(|number| {
            let node = format!("{AMD}/{number}");
            // Processors are nodes of this tree too; their id is 0.
            tree.number(format!("{node}/gpu_id"))
                .filter(|id| *id != 0)?;
            let properties = tree.text(format!("{node}/properties")).unwrap_or_default();
            Some(amd_device(&properties))
        })
        .collect()
}

fn amd_device(properties: &str) -> Accelerator {
    let properties: BTreeMap<&str, u64> = properties
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, value)| Some((name, value.trim().parse().ok()?)))
        .collect();
    let value = |name: &str| properties.get(name).copied().unwrap_or(0);
    let location = value("location_id");
    let (bus, slot, function) = ((location >> 8) & 0xff, (location >> 3) & 0x1f, location & 7);
    let unique = value("unique_id");
    Accelerator {
        address: format!("{:04x}:{bus:02x}:{slot:02x}.{function}", value("domain")),
        uuid: (unique != 0).then(|| format!("GPU-{unique:016x}")),
    }
}

fn intel(tree: &Tree) -> Vec<Accelerator> {
    let mut devices: Vec<Accelerator> = INTEL
        .iter()
        .flat_map(|driver| {
            let names = tree.names(driver).into_iter();
            names.filter(move |name| {
                let class = tree.text(format!("{driver}/{name}/class"));
                class.as_deref() == Some(NO_DISPLAY)
            })
        })
        .map(|address| Accelerator {
            address,
            uuid: None,
        })
        .collect();
    devices.sort_by(|one, other| one.address.cmp(&other.address));
    devices
}
