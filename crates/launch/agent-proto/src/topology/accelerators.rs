//! Accelerators that a worker sees, in order.
//!
//! Order matters: the device of a worker is the one whose index is its local rank. Without a list,
//! NVIDIA's devices are in the order of their PCI addresses. CUDA puts faster devices first unless
//! `CUDA_DEVICE_ORDER=PCI_BUS_ID` is set. On a machine with one kind of device both orders are the
//! same.

/// The maker of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vendor {
    /// Devices of the driver `nvidia`.
    Nvidia,
    /// Devices of the driver `amdgpu`, if they can compute.
    Amd,
    /// Devices of the drivers `xe` and `i915` that are made for data centers.
    Intel,
}

impl Vendor {
    /// Returns the name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvidia => "NVIDIA",
            Self::Amd => "AMD",
            Self::Intel => "Intel",
        }
    }
}

/// One accelerator of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accelerator {
    /// PCI address `dddd:bb:dd.f`, in lower-case hexadecimal digits.
    pub address: String,
    /// UUID `GPU-…`, if the driver reports it.
    pub uuid: Option<String>,
}

/// All accelerators of this machine, by vendor.
/// NVIDIA's and Intel's lists are sorted by PCI address, AMD's by the numbers of the kernel's
/// nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Accelerators {
    /// NVIDIA devices.
    pub nvidia: Vec<Accelerator>,
    /// AMD devices.
    pub amd: Vec<Accelerator>,
    /// Intel devices.
    pub intel: Vec<Accelerator>,
}

/// The values of the environment variables that restrict devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VisibleLists {
    /// Value of `CUDA_VISIBLE_DEVICES`; AMD's runtime reads it as well.
    pub cuda: Option<String>,
    /// Value of `HIP_VISIBLE_DEVICES`; an empty value counts as unset.
    pub hip: Option<String>,
}

/// A device as a list names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visible<'d> {
    /// A known device.
    Device(&'d Accelerator),
    /// A device that only the driver's library could resolve.
    /// The entry is the UUID of a device partition (`MIG-…`), or the driver does not report all
    /// UUIDs.
    Unresolved,
}

impl Accelerators {
    /// Returns this machine's GPUs, visible to programs or not, and their vendor.
    /// These are the NVIDIA devices or, if there are none, the AMD devices.
    pub fn gpus(&self) -> (Vendor, &[Accelerator]) {
        if self.nvidia.is_empty() {
            (Vendor::Amd, &self.amd)
        } else {
            (Vendor::Nvidia, &self.nvidia)
        }
    }

    /// Returns the GPUs that programs see.
    pub fn visible_gpus(&self, lists: &VisibleLists) -> Vec<Visible<'_>> {
        let (vendor, devices) = self.gpus();
        let hip = lists.hip.as_deref().filter(|list| !list.is_empty());
        let list = match vendor {
            Vendor::Amd => hip.or(lists.cuda.as_deref()),
            _ => lists.cuda.as_deref(),
        };
        visible(devices, list)
    }

    /// Returns the accelerators that `auto` and NUMA binding use.
    /// These are the visible GPUs or, if there are none, Intel's devices; `None` without either.
    pub fn current(&self, lists: &VisibleLists) -> Option<(Vendor, Vec<Visible<'_>>)> {
        let gpus = self.visible_gpus(lists);
        if !gpus.is_empty() {
            return Some((self.gpus().0, gpus));
        }
        let intel: Vec<_> = self.intel.iter().map(Visible::Device).collect();
        (!intel.is_empty()).then_some((Vendor::Intel, intel))
    }
}

/// Restricts devices as the driver's library does.
///
/// The first entry that names no device ends the list. A list that names a device twice makes no
/// device visible. An entry is the beginning of a UUID, or an index. Only the digits at the start
/// of an index count (`0;1` is 0, as in PyTorch). Without a list all devices are visible.
pub fn visible<'d>(devices: &'d [Accelerator], list: Option<&str>) -> Vec<Visible<'d>> {
    let Some(list) = list else {
        return devices.iter().map(Visible::Device).collect();
    };
    let mut seen = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let found = match index(entry) {
            Some(index) => devices.get(index).map(Visible::Device),
            None if entry.starts_with("MIG-") => Some(Visible::Unresolved),
            None if entry.starts_with("GPU-") => by_uuid(devices, entry),
            None => None,
        };
        let Some(found) = found else { break };
        if matches!(found, Visible::Device(_)) && seen.contains(&found) {
            return Vec::new();
        }
        seen.push(found);
    }
    // Unresolved entries must not add up to more devices than there are.
    seen.truncate(devices.len());
    seen
}

/// Returns the number at the beginning of an entry.
fn index(entry: &str) -> Option<usize> {
    let number = entry.strip_prefix('+').unwrap_or(entry);
    let end = number.find(|character: char| !character.is_ascii_digit());
    number[..end.unwrap_or(number.len())].parse().ok()
}

fn by_uuid<'d>(devices: &'d [Accelerator], beginning: &str) -> Option<Visible<'d>> {
    let starts = |device: &&Accelerator| {
        let uuid = device.uuid.as_deref();
        uuid.is_some_and(|uuid| uuid.starts_with(beginning))
    };
    let mut matching = devices.iter().filter(starts);
    match (matching.next(), matching.next()) {
        (Some(device), None) => Some(Visible::Device(device)),
        (Some(_), Some(_)) => None,
        (None, _) => devices
            .iter()
            .any(|device| device.uuid.is_none())
            .then_some(Visible::Unresolved),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(uuids: &[Option<&str>]) -> Vec<Accelerator> {
        let device = |(index, uuid): (usize, &Option<&str>)| Accelerator {
            address: format!("0000:{index:02x}:00.0"),
            uuid: uuid.map(str::to_owned),
        };
        uuids.iter().enumerate().map(device).collect()
    }

    fn seen(devices: &[Accelerator], list: Option<&str>) -> Vec<String> {
        let word = |found: &Visible<'_>| match found {
            Visible::Device(device) => device.address[5..7].to_owned(),
            Visible::Unresolved => "?".to_owned(),
        };
        visible(devices, list).iter().map(word).collect()
    }

    #[test]
    fn a_list_chooses_and_orders_devices() {
        let four = devices(&[Some("GPU-aa1"), Some("GPU-aa2"), Some("GPU-b"), None]);
        let cases: [(Option<&str>, &[&str]); 14] = [
            (None, &["00", "01", "02", "03"]),
            (Some(""), &[]),
            (Some("2, 0"), &["02", "00"]),
            (Some("3,4,1"), &["03"]),
            (Some("1,-1,2"), &["01"]),
            (Some("1,1"), &[]),
            (Some("GPU-b"), &["02"]),
            (Some("GPU-aa2,GPU-b"), &["01", "02"]),
            (Some("GPU-aa"), &[]),
            (Some("GPU-zz,0"), &["?", "00"]),
            (Some("MIG-x,1"), &["?", "01"]),
            (Some("nonsense"), &[]),
            (Some("+2,0x1"), &["02", "00"]),
            (Some("1;2,3a"), &["01", "03"]),
        ];
        for (list, expected) in cases {
            assert_eq!(seen(&four, list), expected, "{list:?}");
        }
        let known = devices(&[Some("GPU-a")]);
        assert!(seen(&known, Some("GPU-zz")).is_empty());
    }

    #[test]
    fn each_maker_reads_its_own_variable() {
        let lists = |cuda: Option<&str>, hip: Option<&str>| VisibleLists {
            cuda: cuda.map(str::to_owned),
            hip: hip.map(str::to_owned),
        };
        let nvidia = Accelerators {
            nvidia: devices(&[None, None]),
            intel: devices(&[None]),
            ..Accelerators::default()
        };
        assert_eq!(nvidia.visible_gpus(&lists(None, Some("0"))).len(), 2);
        assert_eq!(nvidia.visible_gpus(&lists(Some("1"), None)).len(), 1);
        let amd = Accelerators {
            amd: devices(&[None, None]),
            ..Accelerators::default()
        };
        assert_eq!(amd.visible_gpus(&lists(Some("0,1"), Some("0"))).len(), 1);
        assert_eq!(amd.visible_gpus(&lists(Some("0"), Some(""))).len(), 1);
        let (vendor, devices) = nvidia.current(&lists(Some(""), None)).unwrap();
        assert_eq!((vendor, devices.len()), (Vendor::Intel, 1));
        assert_eq!(amd.current(&lists(Some(""), None)), None);
    }
}
