//! Tests of accelerators as their drivers publish them.

use rdzv_agent_proto::topology::{Accelerator, Vendor, VisibleLists};

use crate::machine::Machine;

fn words(devices: &[Accelerator]) -> Vec<String> {
    let word = |device: &Accelerator| match &device.uuid {
        Some(uuid) => format!("{} {uuid}", device.address),
        None => device.address.clone(),
    };
    devices.iter().map(word).collect()
}

#[test]
fn nvidia_devices_are_in_the_order_of_their_addresses() {
    let machine = Machine::new();
    machine
        .nvidia("0000:C1:00.0", "GPU-b", 1)
        .nvidia("0000:01:00.0", "GPU-a", 0)
        .nvidia("0000:41:00.0", "GPU-????????-????", 0);
    assert_eq!(
        words(&machine.seen_with("0").accelerators().nvidia),
        ["0000:01:00.0 GPU-a", "0000:41:00.0", "0000:c1:00.0 GPU-b"]
    );
}

#[test]
fn amd_devices_are_the_nodes_that_compute_and_are_no_processors() {
    let machine = Machine::new();
    let node = |number: u32, id: u32, properties: &str| {
        let directory = format!("/sys/class/kfd/kfd/topology/nodes/{number}");
        machine
            .file(&format!("{directory}/gpu_id"), &id.to_string())
            .file(&format!("{directory}/properties"), properties);
    };
    node(0, 0, "cpu_cores_count 64\nlocation_id 0\ndomain 0");
    node(10, 5, "location_id 55808\ndomain 1\nunique_id 0");
    node(
        2,
        7,
        "simd_count 440\nlocation_id 25344\ndomain 0\nunique_id 2305843009213693951",
    );
    assert_eq!(
        words(&machine.seen_with("0").accelerators().amd),
        ["0000:63:00.0 GPU-1fffffffffffffff", "0001:da:00.0"]
    );
}

#[test]
fn intel_devices_count_unless_they_drive_a_display() {
    let machine = Machine::new();
    let device = |driver: &str, address: &str, class: &str| {
        machine.file(
            &format!("/sys/bus/pci/drivers/{driver}/{address}/class"),
            class,
        );
    };
    device("i915", "0000:00:02.0", "0x030000");
    device("i915", "0000:3a:00.0", "0x038000");
    device("xe", "0000:29:00.0", "0x038000");
    machine.file("/sys/bus/pci/drivers/xe/new_id", "");
    let accelerators = machine.seen_with("0").accelerators();
    assert_eq!(words(&accelerators.intel), ["0000:29:00.0", "0000:3a:00.0"]);
    let (vendor, devices) = accelerators.current(&VisibleLists::default()).unwrap();
    assert_eq!((vendor, devices.len()), (Vendor::Intel, 2));
}

#[test]
fn a_machine_without_drivers_has_no_devices() {
    let accelerators = Machine::new().seen_with("0").accelerators();
    assert_eq!(accelerators.current(&VisibleLists::default()), None);
}
