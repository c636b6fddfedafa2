//! Maps for replies, and all devices that a worker uses.

use std::collections::{BTreeMap, BTreeSet};

use super::{Device, DeviceData, DeviceMap, Node};

/// Returns the device maps for replies from `me`, by caller name.
///
/// Each map is the inverse of the caller's map for `me`. A worker that has a map for itself is also
/// a caller.
pub fn reverse_maps(me: &str, nodes: &[Node<'_>]) -> BTreeMap<String, DeviceMap> {
    let theirs = nodes.iter().filter_map(|node| {
        let map = node.data.device_maps.get(me)?;
        Some((node.name.to_owned(), map.inverse()))
    });
    theirs.collect()
}

/// Returns the devices that a worker uses, in order.
///
/// These are the devices that the worker lists. Without a list, they are all of its devices that
/// occur in its maps or in the reverse maps, except the CPU.
pub fn device_list(data: &DeviceData, reverse: &BTreeMap<String, DeviceMap>) -> Vec<Device> {
    let used: BTreeSet<Device> = if data.devices.is_empty() {
        let maps = data.device_maps.values().chain(reverse.values());
        maps.flat_map(DeviceMap::sources)
            .filter(|device| !device.is_cpu())
            .collect()
    } else {
        data.devices.iter().copied().collect()
    };
    used.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(of: &[(&str, &[(u32, u32)])]) -> BTreeMap<String, DeviceMap> {
        let map = |pairs: &[(u32, u32)]| DeviceMap::new(pairs.iter().copied()).unwrap();
        of.iter()
            .map(|(name, pairs)| ((*name).to_owned(), map(pairs)))
            .collect()
    }

    fn worker(device_maps: BTreeMap<String, DeviceMap>, devices: &[u32]) -> DeviceData {
        DeviceData {
            device_count: 4,
            device_maps,
            devices: devices.iter().map(|index| Device::from(*index)).collect(),
        }
    }

    #[test]
    fn replies_go_back_where_requests_came_from() {
        let a = worker(maps(&[("b", &[(0, 1), (2, 3)]), ("a", &[(1, 2)])]), &[]);
        let b = worker(maps(&[("a", &[(1, 1)])]), &[]);
        let nodes = [
            Node {
                name: "a",
                data: &a,
            },
            Node {
                name: "b",
                data: &b,
            },
        ];
        let reverse = reverse_maps("b", &nodes);
        assert_eq!(reverse, maps(&[("a", &[(1, 0), (3, 2)])]));
        // The devices of b: the keys of its maps, and the devices that a sends to.
        assert_eq!(device_list(&b, &reverse), [1.into(), 3.into()]);
        let reverse = reverse_maps("a", &nodes);
        assert_eq!(reverse, maps(&[("a", &[(2, 1)]), ("b", &[(1, 1)])]));
        assert_eq!(device_list(&a, &reverse), [0, 1, 2].map(Device::from));
    }

    #[test]
    fn devices_that_are_listed_are_used_in_order() {
        let a = worker(maps(&[("b", &[(0, 1)])]), &[3, 0]);
        assert_eq!(device_list(&a, &BTreeMap::new()), [0, 3].map(Device::from));
    }

    #[test]
    fn the_cpu_and_devices_without_an_index_do_no_harm() {
        let any: Device = "cuda".parse().unwrap();
        let map = DeviceMap::new([(Device::CPU, Device::CPU), (any, any)]).unwrap();
        let mut a = worker(BTreeMap::from([("b".to_owned(), map)]), &[]);
        assert_eq!(device_list(&a, &BTreeMap::new()), [any]);
        a.devices = vec![Device::from(1), any];
        assert_eq!(device_list(&a, &BTreeMap::new()), [any, Device::from(1)]);
    }
}
