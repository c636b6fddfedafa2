//! Maps between the devices of two workers.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Device;

/// Error for a map that is not one-to-one, with PyTorch's texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotOneToOne {
    /// Two devices are mapped to the same device of the callee.
    #[error(
        "`device_map` only supports 1-to-1 mapping, trying to map {source_device} and {other} to {target}"
    )]
    SameTarget {
        /// Source device that was mapped last.
        source_device: Device,
        /// Source device that was mapped earlier.
        other: Device,
        /// Device of the callee to which both are mapped.
        target: Device,
    },
    /// The same map maps one device to two devices.
    #[error(
        "`device_map` only supports 1-to-1 mapping, trying to map {source_device} to {new} and {old}"
    )]
    TwoTargets {
        /// Source device that is mapped twice.
        source_device: Device,
        /// Target in the later entry.
        new: Device,
        /// Target in the earlier entry.
        old: Device,
    },
    /// A map to be merged contradicts the existing map.
    #[error(
        "`set_device_map` only supports 1-to-1 mapping, trying to map {source_device} to {new} and {old}"
    )]
    Disagrees {
        /// Source device that both maps contain.
        source_device: Device,
        /// Target in the map to be merged.
        new: Device,
        /// Target in the existing map.
        old: Device,
    },
}

/// Map from local devices to devices of the callee.
///
/// The map is displayed as `{cuda:0: cuda:1}`, ordered by key. A map from [`new`](Self::new) is
/// one-to-one, but merging maps may break that. The device check of the group reports this, as in
/// PyTorch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceMap(BTreeMap<Device, Device>);

impl DeviceMap {
    /// Creates a map from pairs of devices.
    ///
    /// # Errors
    ///
    /// [`NotOneToOne`] if one device is mapped to two devices, or two devices to one.
    pub fn new<S, T>(pairs: impl IntoIterator<Item = (S, T)>) -> Result<Self, NotOneToOne>
    where
        S: Into<Device>,
        T: Into<Device>,
    {
        let mut map = BTreeMap::new();
        let mut sources = BTreeMap::new();
        for (source, target) in pairs {
            let (source_device, target): (Device, Device) = (source.into(), target.into());
            match map.insert(source_device, target) {
                Some(old) if old != target => {
                    return Err(NotOneToOne::TwoTargets {
                        source_device,
                        new: target,
                        old,
                    });
                }
                _ => {}
            }
            match sources.insert(target, source_device) {
                Some(other) if other != source_device => {
                    return Err(NotOneToOne::SameTarget {
                        source_device,
                        other,
                        target,
                    });
                }
                _ => {}
            }
        }
        Ok(Self(map))
    }

    /// Merges another map into this one; on an error, no pair is added.
    ///
    /// # Errors
    ///
    /// [`NotOneToOne::Disagrees`] if a device is already mapped to a different device.
    pub fn merge(&mut self, other: &Self) -> Result<(), NotOneToOne> {
        for (source_device, new) in other.pairs() {
            if let Some(old) = self.get(source_device).filter(|old| *old != new) {
                return Err(NotOneToOne::Disagrees {
                    source_device,
                    new,
                    old,
                });
            }
        }
        self.0.extend(other.pairs());
        Ok(())
    }

    /// Returns the target of a local device.
    pub fn get(&self, source: Device) -> Option<Device> {
        self.0.get(&source).copied()
    }

    /// Returns the local devices, in order.
    pub fn sources(&self) -> impl Iterator<Item = Device> {
        self.0.keys().copied()
    }

    /// Returns the devices of the callee, in the order of the local devices.
    pub fn targets(&self) -> impl Iterator<Item = Device> {
        self.0.values().copied()
    }

    /// Returns the pairs of local and target device.
    pub fn pairs(&self) -> impl Iterator<Item = (Device, Device)> {
        self.0.iter().map(|(source, target)| (*source, *target))
    }

    /// Returns the inverse map.
    ///
    /// If two devices are mapped to the same device, the inverse contains the last of them.
    #[must_use]
    pub fn inverse(&self) -> Self {
        Self(
            self.pairs()
                .map(|(source, target)| (target, source))
                .collect(),
        )
    }

    /// `true` if the map is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for DeviceMap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self
            .pairs()
            .map(|(source, target)| format!("{source}: {target}"))
            .collect();
        write!(formatter, "{{{}}}", pairs.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_devices_cannot_be_given_as_one() {
        let error = DeviceMap::new([(0, 1), (2, 1)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`device_map` only supports 1-to-1 mapping, trying to map cuda:2 and cuda:0 to cuda:1"
        );
    }

    #[test]
    fn one_device_cannot_be_given_as_two() {
        let error = DeviceMap::new([(0, 1), (0, 2)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`device_map` only supports 1-to-1 mapping, trying to map cuda:0 to cuda:2 and cuda:1"
        );
        assert!(DeviceMap::new([(0, 1), (0, 1)]).is_ok());
    }

    #[test]
    fn the_cpu_can_be_mapped_both_ways() {
        let map = DeviceMap::new([
            (Device::CPU, Device::from(0)),
            (Device::from(1), Device::CPU),
        ]);
        assert_eq!(map.unwrap().to_string(), "{cpu: cuda:0, cuda:1: cpu}");
    }

    #[test]
    fn maps_are_merged_unless_they_disagree() {
        let mut map = DeviceMap::new([(0, 1)]).unwrap();
        map.merge(&DeviceMap::new([(0, 1), (1, 0)]).unwrap())
            .unwrap();
        let error = map
            .merge(&DeviceMap::new([(2, 2), (1, 3)]).unwrap())
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "`set_device_map` only supports 1-to-1 mapping, trying to map cuda:1 to cuda:3 and cuda:0"
        );
        assert_eq!(map.to_string(), "{cuda:0: cuda:1, cuda:1: cuda:0}");
    }

    #[test]
    fn merging_may_map_two_devices_to_one() {
        let mut map = DeviceMap::new([(0, 1)]).unwrap();
        map.merge(&DeviceMap::new([(1, 1)]).unwrap()).unwrap();
        assert_eq!(map.to_string(), "{cuda:0: cuda:1, cuda:1: cuda:1}");
    }

    #[test]
    fn a_map_survives_its_written_form() {
        let map = DeviceMap::new([
            (Device::CPU, Device::CPU),
            (Device::from(1), Device::from(0)),
        ]);
        let map = map.unwrap();
        let text = serde_json::to_string(&map).unwrap();
        assert_eq!(text, r#"{"cpu":"cpu","cuda:1":"cuda:0"}"#);
        assert_eq!(serde_json::from_str::<DeviceMap>(&text).unwrap(), map);
    }
}
