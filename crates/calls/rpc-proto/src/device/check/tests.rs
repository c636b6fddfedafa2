//! Tests of the rules of devices.
//!
//! They test each rule alone, the order of the rules, and all rules against a model.

use proptest::prelude::*;

use super::*;

/// Parses a device; a number `3` means `cuda:3`.
fn device(text: &str) -> Device {
    text.parse().unwrap()
}

/// Creates a worker with this number of devices, its list, and its maps.
///
/// A map is a target and its pairs `source>target …`.
fn worker(device_count: u32, devices: &str, maps: &[(&str, &str)]) -> DeviceData {
    let map = |text: &str| {
        // Merged pair by pair, as a user can, so that two devices may be mapped to one.
        let mut whole = DeviceMap::default();
        for pair in text.split_whitespace() {
            let (source, target) = pair.split_once('>').unwrap();
            let one = DeviceMap::new([(device(source), device(target))]).unwrap();
            whole.merge(&one).unwrap();
        }
        whole
    };
    DeviceData {
        device_count,
        device_maps: maps
            .iter()
            .map(|(target, text)| ((*target).to_owned(), map(text)))
            .collect(),
        devices: devices.split_whitespace().map(device).collect(),
    }
}

fn checked(workers: &[(&str, DeviceData)], kind: GroupKind) -> String {
    let nodes: Vec<Node<'_>> = workers
        .iter()
        .map(|(name, data)| Node { name, data })
        .collect();
    check(&nodes, kind).map_or_else(|fault| fault.to_string(), |()| "fine".to_owned())
}

/// Checks a static group of `a` and `b`, and returns the error.
fn of_two(a: DeviceData, b: DeviceData) -> String {
    checked(&[("a", a), ("b", b)], GroupKind::Static)
}

fn plain() -> DeviceData {
    worker(4, "", &[])
}

#[test]
fn what_fits_is_fine() {
    assert_eq!(of_two(plain(), plain()), "fine");
    assert_eq!(
        of_two(
            worker(2, "0 1", &[("b", "0>1 1>0"), ("a", "0>0")]),
            worker(2, "1 0", &[("a", "1>1")])
        ),
        "fine"
    );
    // The group has no accelerator: the CPU may be listed and mapped.
    assert_eq!(
        of_two(worker(0, "cpu", &[("b", "cpu>cpu")]), worker(0, "", &[])),
        "fine"
    );
    assert_eq!(
        of_two(worker(1, "", &[("b", "cpu>0 0>cpu")]), plain()),
        "fine"
    );
    // Maps without pairs.
    assert_eq!(
        of_two(worker(0, "", &[("b", "")]), worker(0, "", &[])),
        "fine"
    );
}

#[test]
fn v1_a_device_is_listed_twice() {
    assert_eq!(
        of_two(plain(), worker(2, "0 1 0", &[])),
        "Node b has duplicated devices\ndevices = [cuda:0, cuda:1, cuda:0]"
    );
}

#[test]
fn v2_a_listed_device_does_not_exist() {
    for (count, devices, printed) in [
        (2, "0 2", "[cuda:0, cuda:2]"),
        (0, "0", "[cuda:0]"),
        (4, "cuda", "[cuda]"),
        (4, "xpu:0", "[xpu:0]"),
    ] {
        assert_eq!(
            of_two(worker(count, devices, &[]), plain()),
            format!(
                "Node a has devices with invalid indices\ndevices = {printed}\ndevice count = {count}"
            )
        );
    }
}

#[test]
fn v3_a_map_is_for_nobody() {
    let a = || worker(4, "", &[("b", "0>0"), ("c", "9>9")]);
    assert_eq!(
        of_two(a(), plain()),
        "Node a has invalid target node names in its device maps\n\
         device maps = ['b', 'c']\nnode names = ['a', 'b']"
    );
    // In a dynamic group c may join later. The devices of a are checked anyway.
    assert_eq!(
        checked(&[("a", a()), ("b", plain())], GroupKind::Dynamic),
        "Node a has source devices with invalid indices in its device map for c\n\
         device map = {cuda:9: cuda:9}\ndevice count = 4"
    );
    let a = worker(4, "", &[("c", "0>9")]);
    assert_eq!(checked(&[("a", a)], GroupKind::Dynamic), "fine");
}

#[test]
fn v4_two_devices_are_mapped_to_one() {
    assert_eq!(
        of_two(worker(4, "", &[("b", "0>1 2>1")]), plain()),
        "Node a has duplicated target devices in its device map for b\n\
         device map = {cuda:0: cuda:1, cuda:2: cuda:1}"
    );
}

#[test]
fn v5_a_source_is_not_listed() {
    assert_eq!(
        of_two(worker(4, "1 0", &[("b", "2>0")]), plain()),
        "Node a has unexpected source devices in its device map for b\n\
         device map = {cuda:2: cuda:0}\ndevices = [cuda:1, cuda:0]"
    );
    // If a worker lists devices, it must list the CPU too.
    assert_eq!(
        of_two(worker(4, "0", &[("b", "cpu>0")]), plain()),
        "Node a has unexpected source devices in its device map for b\n\
         device map = {cpu: cuda:0}\ndevices = [cuda:0]"
    );
}

#[test]
fn v6_a_source_does_not_exist() {
    for source in ["4", "cuda", "xpu:0"] {
        let map = format!("{source}>0");
        assert_eq!(
            of_two(worker(4, "", &[("b", &map)]), plain()),
            format!(
                "Node a has source devices with invalid indices in its device map for b\n\
                 device map = {{{}: cuda:0}}\ndevice count = 4",
                device(source)
            )
        );
    }
}

#[test]
fn v7_a_target_is_not_listed() {
    assert_eq!(
        of_two(worker(4, "", &[("b", "0>3")]), worker(4, "0 1", &[])),
        "Node a has unexpected target devices in its device map for b\n\
         device map = {cuda:0: cuda:3}\ndevices = [cuda:0, cuda:1]"
    );
}

#[test]
fn v8_a_target_does_not_exist() {
    for target in ["1", "cuda"] {
        let map = format!("0>{target}");
        assert_eq!(
            of_two(worker(4, "", &[("b", &map)]), worker(1, "", &[])),
            format!(
                "Node a has target devices with invalid indices in its device map for b\n\
                 device map = {{cuda:0: {}}}\ndevice count = 1",
                device(target)
            )
        );
    }
}

#[test]
fn the_first_rule_that_is_broken_is_named() {
    let begins = |text: &str, with: &str| assert!(text.starts_with(with), "{text}");
    // V1 before V2 of one node, but V2 of the first node before V1 of the second.
    begins(
        &of_two(worker(1, "7 7", &[]), plain()),
        "Node a has duplicated devices\n",
    );
    begins(
        &of_two(worker(1, "7", &[]), worker(1, "0 0", &[])),
        "Node a has devices with invalid",
    );
    // V2 of the second node before V3 of the first.
    begins(
        &of_two(worker(1, "", &[("c", "")]), worker(1, "7", &[])),
        "Node b has devices with invalid",
    );
    // V3 of the first node before its V4, and before V3 of the second.
    begins(
        &of_two(
            worker(1, "", &[("b", "0>0 1>0"), ("c", "")]),
            worker(1, "", &[("d", "")]),
        ),
        "Node a has invalid target node names",
    );
    // V8 of the first node before V3 of the second.
    begins(
        &of_two(worker(1, "", &[("b", "0>8")]), worker(1, "", &[("d", "")])),
        "Node a has target devices with invalid",
    );
    // V4, V5 and V7 in one map, then V5 and V7, V6 and V7, V7 alone. V8 of the first target before
    // V4 of the second.
    let b = || worker(4, "0 1", &[]);
    begins(
        &of_two(worker(4, "0", &[("b", "0>3 1>3")]), b()),
        "Node a has duplicated target devices",
    );
    begins(
        &of_two(worker(4, "0", &[("b", "1>3")]), b()),
        "Node a has unexpected source",
    );
    begins(
        &of_two(worker(1, "", &[("b", "1>3")]), b()),
        "Node a has source devices with",
    );
    begins(
        &of_two(worker(1, "", &[("b", "0>3")]), b()),
        "Node a has unexpected target",
    );
    begins(
        &of_two(worker(4, "", &[("a", "0>9"), ("b", "0>0 1>0")]), plain()),
        "Node a has target devices with invalid indices in its device map for a",
    );
}

/// Returns the number of the first broken rule, found by plain loops.
fn model(workers: &[(String, DeviceData)], is_static: bool) -> u8 {
    let on = |device: &Device, count: u32| {
        device.is_cpu() || (0..count).any(|index| *device == Device::from(index))
    };
    for (_, data) in workers {
        for (at, device) in data.devices.iter().enumerate() {
            if data.devices[..at].contains(device) {
                return 1;
            }
        }
        if data
            .devices
            .iter()
            .any(|device| !on(device, data.device_count))
        {
            return 2;
        }
    }
    for (_, data) in workers {
        let known = |name: &String| workers.iter().find(|(other, _)| other == name);
        if is_static && data.device_maps.keys().any(|name| known(name).is_none()) {
            return 3;
        }
        for (name, map) in &data.device_maps {
            let targets: Vec<Device> = map.targets().collect();
            for (at, device) in targets.iter().enumerate() {
                if targets[..at].contains(device) {
                    return 4;
                }
            }
            let listed = |list: &[Device], device: &Device| list.contains(device);
            if !data.devices.is_empty() {
                if map.sources().any(|device| !listed(&data.devices, &device)) {
                    return 5;
                }
            } else if map.sources().any(|device| !on(&device, data.device_count)) {
                return 6;
            }
            if let Some((_, target)) = known(name) {
                if !target.devices.is_empty() {
                    if targets
                        .iter()
                        .any(|device| !listed(&target.devices, device))
                    {
                        return 7;
                    }
                } else if targets
                    .iter()
                    .any(|device| !on(device, target.device_count))
                {
                    return 8;
                }
            }
        }
    }
    0
}

fn rule(fault: &DeviceFault) -> u8 {
    match fault {
        DeviceFault::DuplicatedDevices { .. } => 1,
        DeviceFault::InvalidDevices { .. } => 2,
        DeviceFault::UnknownTargets { .. } => 3,
        DeviceFault::Map { fault, .. } => match fault {
            MapFault::DuplicatedTargets => 4,
            MapFault::Sources(Misfit::Unlisted(_)) => 5,
            MapFault::Sources(Misfit::Absent(_)) => 6,
            MapFault::Targets(Misfit::Unlisted(_)) => 7,
            MapFault::Targets(Misfit::Absent(_)) => 8,
        },
    }
}

/// Mostly devices that exist, so that the later rules are reached too.
fn any_device() -> impl Strategy<Value = Device> {
    prop_oneof![
        12 => (0_u32..3).prop_map(Device::from),
        2 => Just(Device::CPU),
        1 => Just("cuda".parse().unwrap()),
        1 => (3_u32..6).prop_map(Device::from),
    ]
}

fn any_map() -> impl Strategy<Value = DeviceMap> {
    proptest::collection::vec((any_device(), any_device()), 0..3).prop_map(|pairs| {
        let mut map = DeviceMap::default();
        for pair in pairs {
            let one = DeviceMap::new([pair]).unwrap();
            // A device that is already in the map keeps its target.
            let _ = map.merge(&one);
        }
        map
    })
}

fn any_worker() -> impl Strategy<Value = DeviceData> {
    let names = proptest::sample::select(vec!["w0", "w0", "w1", "w1", "w2", "w2", "absent"]);
    (
        prop_oneof![6 => Just(3_u32), 1 => 0_u32..3],
        proptest::collection::btree_map(names.prop_map(str::to_owned), any_map(), 0..3),
        prop_oneof![
            3 => Just(Vec::new()),
            2 => Just([0, 1, 2].map(Device::from).to_vec()),
            2 => proptest::collection::vec(any_device(), 0..3),
        ],
    )
        .prop_map(|(device_count, device_maps, devices)| DeviceData {
            device_count,
            device_maps,
            devices,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn the_rules_equal_a_model_and_so_does_what_follows(
        workers in proptest::collection::vec(any_worker(), 1..4),
        is_static: bool,
    ) {
        let workers: Vec<(String, DeviceData)> = (0..)
            .zip(workers)
            .map(|(rank, data)| (format!("w{rank}"), data))
            .collect();
        let nodes: Vec<Node<'_>> = workers
            .iter()
            .map(|(name, data)| Node { name, data })
            .collect();
        let kind = if is_static { GroupKind::Static } else { GroupKind::Dynamic };
        let verdict = check(&nodes, kind);
        prop_assert_eq!(
            verdict.as_ref().map_or_else(rule, |()| 0),
            model(&workers, is_static)
        );
        if verdict.is_err() {
            return Ok(());
        }
        // A tensor that goes from any worker to any other returns to the same device. Both devices
        // are among those that the workers use.
        let used: Vec<_> = workers
            .iter()
            .map(|(name, data)| {
                let reverse = super::super::reverse_maps(name, &nodes);
                let list = super::super::device_list(data, &reverse);
                (name, data, reverse, list)
            })
            .collect();
        for (caller, data, _, callers_devices) in &used {
            for (callee, _, reverse, callees_devices) in &used {
                let map = data.device_maps.get(*callee);
                prop_assert_eq!(map.is_some(), reverse.contains_key(*caller));
                for (source, target) in map.into_iter().flat_map(DeviceMap::pairs) {
                    prop_assert_eq!(reverse[*caller].get(target), Some(source));
                    for (device, list) in [(source, callers_devices), (target, callees_devices)] {
                        prop_assert!(device.is_cpu() || list.contains(&device));
                    }
                }
            }
        }
        for (_, data, reverse, list) in &used {
            let mut model: Vec<Device> = (0..6)
                .map(Device::from)
                .filter(|device| {
                    if !data.devices.is_empty() {
                        return data.devices.contains(device);
                    }
                    let maps = data.device_maps.values().chain(reverse.values());
                    maps.flat_map(DeviceMap::sources).any(|source| source == *device)
                })
                .collect();
            if data.devices.contains(&Device::CPU) {
                model.insert(0, Device::CPU);
            }
            prop_assert_eq!(list, &model);
        }
    }
}
