//! Tests that bind workers to the processors near their devices.

use rdzv_agent::launcher::topology::Hardware;
use rdzv_agent_proto::topology::{BindingMode, VisibleLists};

use crate::machine::Machine;

fn bound_with(
    hardware: &Hardware,
    mode: BindingMode,
    workers: u32,
    cuda: Option<&str>,
) -> Result<Vec<String>, String> {
    let lists = VisibleLists {
        cuda: cuda.map(str::to_owned),
        hip: None,
    };
    match hardware.bind(mode, &lists, workers) {
        Ok(bindings) => Ok(bindings
            .iter()
            .map(|binding| binding.processors.to_string())
            .collect()),
        Err(error) => Err(error.to_string()),
    }
}

fn bound(hardware: &Hardware, mode: BindingMode, workers: u32) -> Vec<String> {
    bound_with(hardware, mode, workers, None).unwrap()
}

/// Creates a machine with 2 sockets, 4 NUMA nodes, 16 cores and 32 threads.
/// Each node has four cores with two threads each: the threads of core `c` are `c` and `c + 16`.
/// Two devices are at node 0, one at node 1, and one at node 3.
fn two_sockets() -> Machine {
    let machine = Machine::new();
    let siblings = |number: u32| format!("{},{}", number % 16, number % 16 + 16);
    let cache = |number: u32| {
        let first = number % 16 / 4 * 4;
        format!("{first}-{},{}-{}", first + 3, first + 16, first + 19)
    };
    machine
        .nodes(&["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"])
        .processors(0..8, 0, siblings, cache)
        .processors(16..24, 0, siblings, cache)
        .processors(8..16, 1, siblings, cache)
        .processors(24..32, 1, siblings, cache)
        .nvidia("0000:1a:00.0", "GPU-11111111-2222", 0)
        .nvidia("0000:1b:00.0", "GPU-33333333-4444", 0)
        .nvidia("0000:9c:00.0", "GPU-55555555-6666", 1)
        .nvidia("0001:01:00.0", "GPU-77777777-8888", 3);
    machine
}

#[test]
fn a_worker_is_bound_to_the_node_of_its_device() {
    let machine = two_sockets();
    let hardware = machine.seen_with("0-31");
    assert_eq!(
        bound(&hardware, BindingMode::Node, 4),
        ["0-3,16-19", "0-3,16-19", "4-7,20-23", "12-15,28-31"]
    );
}

#[test]
fn or_to_all_nodes_of_its_socket() {
    let machine = two_sockets();
    // One node has memory without processors; the others are possible but absent.
    machine
        .file("/sys/devices/system/node/possible", "0-63")
        .file("/sys/devices/system/node/node4/cpulist", "");
    assert_eq!(
        bound(&machine.seen_with("0-31"), BindingMode::Socket, 4),
        ["0-7,16-23", "0-7,16-23", "0-7,16-23", "8-15,24-31"]
    );
}

#[test]
fn or_to_a_share_of_the_cores_of_its_node() {
    let machine = two_sockets();
    assert_eq!(
        bound(&machine.seen_with("0-31"), BindingMode::Exclusive, 4),
        ["0-1,16-17", "2-3,18-19", "4-7,20-23", "12-15,28-31"]
    );
    // Core 1 lost one thread, core 3 both: three cores for two devices.
    assert_eq!(
        bound(
            &machine.seen_with("0-2,4-16,18,20-31"),
            BindingMode::Exclusive,
            3
        ),
        ["0-1,16", "2,18", "4-7,20-23"]
    );
}

#[test]
fn or_to_cores_that_share_a_cache_largest_first() {
    let machine = Machine::new();
    // The node has three complexes: 0-3, 4-7, 8-11. Processors 1 and 2 are offline.
    let cache = |number: u32| format!("{}-{}", number / 4 * 4, number / 4 * 4 + 3);
    machine
        .nodes(&["0,3-11"])
        .processors(0..12, 0, |number| number.to_string(), cache);
    for bus in 1..5 {
        machine.nvidia(&format!("0000:0{bus}:00.0"), "GPU-????????", -1);
    }
    assert_eq!(
        bound(&machine.seen_with("0,3-11"), BindingMode::CoreComplex, 4),
        ["4-7", "8-11", "0,3", "4-7"]
    );
    assert_eq!(
        bound(&machine.seen_with("3-6,9"), BindingMode::CoreComplex, 2),
        ["4-6", "3"]
    );
}

#[test]
fn a_device_that_says_no_node_is_at_the_first() {
    let machine = two_sockets();
    machine.numa_node("0001:01:00.0", -1);
    let bound = bound(&machine.seen_with("0-31"), BindingMode::Node, 4);
    assert_eq!(bound[3], "0-3,16-19");
}

#[test]
fn a_worker_gets_no_processor_that_the_agent_may_not_use() {
    let machine = two_sockets();
    let hardware = machine.seen_with("2-5,20");
    assert_eq!(
        bound(&hardware, BindingMode::Node, 3),
        ["2-3", "2-3", "4-5,20"]
    );
    let error = bound_with(&hardware, BindingMode::Node, 4, None).unwrap_err();
    assert!(
        error.contains("cannot use any processor of NUMA node 3") && error.contains("2-5,20"),
        "{error}"
    );
}

#[test]
fn the_devices_that_a_list_names_are_the_ones_that_count() {
    let machine = two_sockets();
    let hardware = machine.seen_with("0-31");
    let by_index = bound_with(&hardware, BindingMode::Node, 2, Some("3,2"));
    assert_eq!(by_index.unwrap(), ["12-15,28-31", "4-7,20-23"]);
    let by_uuid = bound_with(&hardware, BindingMode::Exclusive, 1, Some("GPU-3333"));
    assert_eq!(by_uuid.unwrap(), ["0-3,16-19"]);
    let error = bound_with(&hardware, BindingMode::Node, 1, Some("MIG-1")).unwrap_err();
    assert!(error.contains("specify the device by its index"), "{error}");
    assert_eq!(
        bound_with(&hardware, BindingMode::Node, 1, Some("")).unwrap_err(),
        "No accelerator available for NUMA binding"
    );
}

#[test]
fn what_cannot_be_bound_is_refused_with_the_reason() {
    let check = |machine: &Machine, mode, workers, reason: &str| {
        let error = bound_with(&machine.seen_with("0-31"), mode, workers, None).unwrap_err();
        assert!(error.contains(reason), "{error}");
    };
    let machine = two_sockets();
    check(&machine, BindingMode::Node, 5, "local rank 4 has no device");
    let error = bound_with(&machine.seen_with("0,4"), BindingMode::Exclusive, 1, None);
    let error = error.unwrap_err();
    assert!(
        error.contains("NUMA node 0 has only 1 usable physical core for"),
        "{error}"
    );
    machine.remove("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
    let reason = "does not report the core of processor 0";
    check(&machine, BindingMode::Exclusive, 1, reason);
    let list = "/sys/devices/system/node/node0/cpulist";
    machine.file(list, "0-x");
    check(&machine, BindingMode::Node, 1, &format!("{list}: "));
    machine.remove(list);
    let reason = "the kernel does not list this node";
    check(&machine, BindingMode::Node, 1, reason);
    let node = "/sys/bus/pci/devices/0000:1a:00.0/numa_node";
    machine.remove(node);
    check(&machine, BindingMode::Node, 1, &format!("{node}: "));
    let reason = "No accelerator available for NUMA binding";
    check(&Machine::new(), BindingMode::Node, 1, reason);
}
