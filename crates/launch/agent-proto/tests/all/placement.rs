//! Properties of binding and of lists of processors, on machines of any shape.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rdzv_agent_proto::topology::{BindingError, BindingMode, CpuList, Processor, Topology, bind};

/// A machine with sockets, NUMA nodes, cores and threads.
///
/// Some processors are not allowed, and devices can be at any node. Threads are numbered as on most
/// machines: the first thread of every core, then the second thread of every core.
#[derive(Debug, Clone)]
struct Shape {
    sockets: u32,
    nodes_per_socket: u32,
    cores_per_node: u32,
    threads: u32,
    cores_per_cache: u32,
    forbidden: BTreeSet<u32>,
    devices: Vec<u32>,
}

impl Shape {
    fn cores(&self) -> u32 {
        self.sockets * self.nodes_per_socket * self.cores_per_node
    }

    fn threads_of(&self, cores: impl Iterator<Item = u32> + Clone) -> CpuList {
        (0..self.threads)
            .flat_map(|thread| cores.clone().map(move |core| (thread, core)))
            .map(|(thread, core)| thread * self.cores() + core)
            .collect()
    }

    fn topology(&self) -> Topology {
        let nodes = self.sockets * self.nodes_per_socket;
        let per_node = self.cores_per_node;
        let all: CpuList = (0..self.cores() * self.threads).collect();
        let processor = |number: u32| {
            let core = number % self.cores();
            let node = core / per_node;
            let first = core - core % per_node % self.cores_per_cache;
            let last = (first + self.cores_per_cache).min((node + 1) * per_node);
            Processor {
                package: i32::try_from(node / self.nodes_per_socket).ok(),
                core: self.threads_of(core..core + 1),
                cache: self.threads_of(first..last),
            }
        };
        Topology {
            allowed: all
                .iter()
                .filter(|one| !self.forbidden.contains(one))
                .collect(),
            nodes: (0..nodes)
                .map(|node| {
                    (
                        node,
                        self.threads_of(node * per_node..(node + 1) * per_node),
                    )
                })
                .collect(),
            processors: all.iter().map(|one| (one, processor(one))).collect(),
            devices: self.devices.iter().map(|device| device % nodes).collect(),
        }
    }
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1..3u32, 1..4u32, 1..9u32, 1..3u32, 1..5u32).prop_flat_map(
        |(sockets, nodes_per_socket, cores_per_node, threads, cores_per_cache)| {
            let processors = sockets * nodes_per_socket * cores_per_node * threads;
            let forbidden = prop::collection::btree_set(0..processors, 0..6);
            let devices = prop::collection::vec(0..6u32, 1..9);
            (forbidden, devices).prop_map(move |(forbidden, devices)| Shape {
                sockets,
                nodes_per_socket,
                cores_per_node,
                threads,
                cores_per_cache,
                forbidden,
                devices,
            })
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_can_be_read(processors in prop::collection::btree_set(0..65536u32, 0..200)) {
        let list: CpuList = processors.iter().copied().collect();
        prop_assert_eq!(CpuList::parse(&list.to_string()).unwrap(), list);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[-0-9, \n:/a]{0,40}") {
        if let Ok(list) = CpuList::parse(&text) {
            prop_assert_eq!(CpuList::parse(&list.to_string()).unwrap(), list);
        }
    }

    #[test]
    fn workers_are_bound_near_their_device_and_to_what_is_allowed(shape in shapes()) {
        let topology = shape.topology();
        for (device, node) in (0..).zip(&topology.devices) {
            let near = topology.nodes[node].intersection(&topology.allowed);
            let bound = |mode| bind(mode, device, &topology);
            if near.is_empty() {
                let none_allowed = matches!(
                    bound(BindingMode::Node),
                    Err(BindingError::NoneAllowed { .. })
                );
                prop_assert!(none_allowed);
                continue;
            }
            prop_assert_eq!(&bound(BindingMode::Node).unwrap().processors, &near);
            let socket = bound(BindingMode::Socket).unwrap().processors;
            let complex = bound(BindingMode::CoreComplex).unwrap().processors;
            prop_assert!(!complex.is_empty());
            prop_assert_eq!(near.intersection(&complex), complex);
            prop_assert_eq!(socket.intersection(&near), near);
            prop_assert_eq!(topology.allowed.intersection(&socket), socket);
        }
    }

    #[test]
    fn exclusive_shares_are_whole_cores_cover_the_node_and_differ_by_one(shape in shapes()) {
        let topology = shape.topology();
        let mut shares: BTreeMap<u32, Vec<CpuList>> = BTreeMap::new();
        for (device, node) in (0..).zip(&topology.devices) {
            match bind(BindingMode::Exclusive, device, &topology) {
                Ok(binding) => shares.entry(*node).or_default().push(binding.processors),
                Err(BindingError::NoneAllowed { .. }) => {}
                Err(BindingError::TooFewCores { cores, devices, .. }) => {
                    prop_assert!(cores < devices);
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
        for (node, shares) in shares {
            let near = topology.nodes[&node].intersection(&topology.allowed);
            let together: Vec<u32> = shares.iter().flat_map(CpuList::iter).collect();
            let different: CpuList = together.iter().copied().collect();
            prop_assert_eq!(different.len(), together.len(), "shares overlap");
            prop_assert_eq!(different, near);
            let cores = |share: &CpuList| {
                let lowest = share.iter().map(|one| topology.processors[&one].core.first());
                lowest.collect::<BTreeSet<_>>().len()
            };
            let sizes: BTreeSet<usize> = shares.iter().map(cores).collect();
            prop_assert!(sizes.last().unwrap() - sizes.first().unwrap() <= 1);
        }
    }
}
