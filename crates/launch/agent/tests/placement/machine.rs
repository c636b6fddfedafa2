//! Machine that consists of files.

use std::fs;
use std::ops::Range;

use rdzv_agent::launcher::topology::Hardware;
use rdzv_agent_proto::topology::CpuList;
use tempfile::TempDir;

/// `/proc` and `/sys` of a machine that does not exist.
pub(crate) struct Machine {
    root: TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    pub(crate) fn remove(&self, path: &str) -> &Self {
        fs::remove_file(self.root.path().join(path.trim_start_matches('/'))).unwrap();
        self
    }

    /// Adds NUMA nodes with these processors, numbered from 0.
    pub(crate) fn nodes(&self, lists: &[&str]) -> &Self {
        let most = lists.len() - 1;
        self.file("/sys/devices/system/node/possible", &format!("0-{most}"));
        for (node, list) in lists.iter().enumerate() {
            self.file(
                &format!("/sys/devices/system/node/node{node}/cpulist"),
                list,
            );
        }
        self
    }

    /// Adds processors of one socket.
    /// `siblings` returns the threads of a processor's core, and `cache` the processors that share
    /// its third-level cache.
    pub(crate) fn processors(
        &self,
        numbers: Range<u32>,
        socket: i32,
        siblings: impl Fn(u32) -> String,
        cache: impl Fn(u32) -> String,
    ) -> &Self {
        for number in numbers {
            let directory = format!("/sys/devices/system/cpu/cpu{number}");
            let siblings = siblings(number);
            self.file(
                &format!("{directory}/topology/physical_package_id"),
                &socket.to_string(),
            );
            self.file(
                &format!("{directory}/topology/thread_siblings_list"),
                &siblings,
            );
            let levels = [
                ("index0", "Data", 1, siblings.clone()),
                ("index1", "Instruction", 1, siblings.clone()),
                ("index2", "Unified", 2, siblings),
                ("index3", "Unified", 3, cache(number)),
                // No kernel reports this; the test shows that the kind decides before the level.
                ("index9", "Instruction", 9, number.to_string()),
            ];
            for (index, kind, level, shared) in levels {
                let index = format!("{directory}/cache/{index}");
                self.file(&format!("{index}/type"), kind);
                self.file(&format!("{index}/level"), &level.to_string());
                self.file(&format!("{index}/shared_cpu_list"), &shared);
            }
            self.file(&format!("{directory}/cache/uevent"), "");
        }
        self
    }

    /// Adds an NVIDIA device at a PCI address and a NUMA node.
    pub(crate) fn nvidia(&self, address: &str, uuid: &str, node: i32) -> &Self {
        let information = format!(
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 312\nGPU UUID: \t {uuid}\n\
             Bus Location: \t {address}\nDevice Minor: \t 0"
        );
        self.file(
            &format!("/proc/driver/nvidia/gpus/{address}/information"),
            &information,
        );
        self.numa_node(address, node)
    }

    pub(crate) fn numa_node(&self, address: &str, node: i32) -> &Self {
        self.file(
            &format!("/sys/bus/pci/devices/{address}/numa_node"),
            &node.to_string(),
        )
    }

    /// Returns the hardware for a process that may use these processors.
    pub(crate) fn seen_with(&self, affinity: &str) -> Hardware {
        Hardware::described_by(self.root.path(), CpuList::parse(affinity).unwrap())
    }
}
