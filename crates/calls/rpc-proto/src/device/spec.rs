//! Devices that hold tensors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum DeviceType {
    /// Host memory.
    #[default]
    Cpu,
    /// CUDA accelerator, the kind that groups use.
    Cuda,
    /// Intel accelerator.
    Xpu,
    /// Apple accelerator.
    Mps,
    /// No memory: the tensor has only a shape.
    Meta,
}

/// All kinds, by their names.
const TYPES: [(&str, DeviceType); 5] = [
    ("cpu", DeviceType::Cpu),
    ("cuda", DeviceType::Cuda),
    ("xpu", DeviceType::Xpu),
    ("mps", DeviceType::Mps),
    ("meta", DeviceType::Meta),
];

impl DeviceType {
    /// Kind of a device that is specified as a bare number.
    ///
    /// Maps may contain only this kind and the CPU.
    pub const ACCELERATOR: Self = Self::Cuda;
}

impl fmt::Display for DeviceType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = TYPES.iter().find(|(_, kind)| kind == self);
        formatter.write_str(named.map_or("unknown", |(name, _)| name))
    }
}

/// Error for a text that does not specify a device.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadDevice {
    /// The kind is unknown.
    #[error("Expected one of cpu, cuda, xpu, mps, meta device type at start of device string: {0}")]
    Type(String),
    /// The index is not a valid number.
    #[error("Invalid device string: '{0}'")]
    Index(String),
}

/// Device of a worker.
///
/// The CPU has no index. An accelerator without an index stands for no particular accelerator.
///
/// A device is displayed and parsed as its kind, with an index if it has one: `cpu`, `cuda:1`. A
/// bare number is parsed as the index of an accelerator.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Device {
    kind: DeviceType,
    index: Option<u32>,
}

impl Device {
    /// The CPU, which stands for host memory.
    pub const CPU: Self = Self {
        kind: DeviceType::Cpu,
        index: None,
    };

    /// Creates a device of this kind. The CPU never has an index.
    pub fn new(kind: DeviceType, index: Option<u32>) -> Self {
        let index = index.filter(|_| kind != DeviceType::Cpu);
        Self { kind, index }
    }

    /// Creates the accelerator with this index.
    pub const fn accelerator(index: u32) -> Self {
        Self {
            kind: DeviceType::ACCELERATOR,
            index: Some(index),
        }
    }

    /// Returns the kind of the device.
    pub fn kind(self) -> DeviceType {
        self.kind
    }

    /// Returns the index among devices of this kind, if there is one.
    pub fn index(self) -> Option<u32> {
        self.index
    }

    /// `true` if the device is the CPU.
    pub fn is_cpu(self) -> bool {
        self.kind == DeviceType::Cpu
    }

    /// `true` if a worker with this many accelerators has the device.
    pub fn is_among(self, device_count: u32) -> bool {
        match self.index {
            _ if self.is_cpu() => true,
            Some(index) => self.kind == DeviceType::ACCELERATOR && index < device_count,
            None => false,
        }
    }
}

impl From<u32> for Device {
    fn from(index: u32) -> Self {
        Self::accelerator(index)
    }
}

impl FromStr for Device {
    type Err = BadDevice;

    fn from_str(text: &str) -> Result<Self, BadDevice> {
        let digits =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = |part: &str| {
            // Each number has only one valid form, as in PyTorch.
            let is_number = digits(part) && (part == "0" || !part.starts_with('0'));
            let parsed = part.parse().ok().filter(|_| is_number);
            parsed.ok_or_else(|| BadDevice::Index(text.to_owned()))
        };
        if digits(text) {
            return number(text).map(Self::accelerator);
        }
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => (name, Some(index)),
            None => (text, None),
        };
        let known = TYPES.iter().find(|(known, _)| *known == name);
        let (_, kind) = known.ok_or_else(|| BadDevice::Type(text.to_owned()))?;
        Ok(Self::new(*kind, index.map(number).transpose()?))
    }
}

impl TryFrom<String> for Device {
    type Error = BadDevice;

    fn try_from(text: String) -> Result<Self, BadDevice> {
        text.parse()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        device.to_string()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(formatter, "{}:{index}", self.kind),
            None => self.kind.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_prints_as_it_is_parsed() {
        for text in ["cpu", "cuda", "cuda:0", "cuda:17", "xpu:1", "meta"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        assert_eq!("cpu:0".parse::<Device>().unwrap(), Device::CPU);
        assert_eq!("3".parse::<Device>().unwrap(), Device::from(3));
        assert_eq!(Device::from(3).to_string(), "cuda:3");
    }

    #[test]
    fn a_text_that_names_no_device_is_quoted() {
        let text = |device: &str| device.parse::<Device>().unwrap_err().to_string();
        assert!(text("gpu:0").ends_with("at start of device string: gpu:0"));
        assert!(text("").ends_with("at start of device string: "));
        for wrong in [
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:x",
            "cuda:4294967296",
            "4294967296",
            "cuda:01",
            "cuda:00",
            "01",
        ] {
            assert_eq!(text(wrong), format!("Invalid device string: '{wrong}'"));
        }
    }

    #[test]
    fn a_worker_has_the_cpu_and_the_accelerators_below_its_count() {
        assert!(Device::CPU.is_among(0));
        assert!(Device::from(1).is_among(2));
        assert!(!Device::from(2).is_among(2));
        assert!(!Device::from(0).is_among(0));
        // A device without an index, and one of a kind that no group uses.
        assert!(!Device::new(DeviceType::Cuda, None).is_among(8));
        assert!(!Device::new(DeviceType::Xpu, Some(0)).is_among(8));
    }
}
