//! Affinity mask, quotas of control groups, and processors in sysfs.

use std::collections::BTreeMap;

use rdzv_agent_proto::topology::cgroup::{Version, directories};
use rdzv_agent_proto::topology::{BindingMode, CpuLimit, CpuList, Processor, Quota, Topology};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::PlacementError;
use super::tree::Tree;

const NODES: &str = "/sys/devices/system/node";
const PROCESSORS: &str = "/sys/devices/system/cpu";

pub(super) fn affinity() -> CpuList {
    match sched_getaffinity(None::<Pid>) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|&processor| set.is_set(processor))
            .filter_map(|processor| u32::try_from(processor).ok())
            .collect(),
        // The machine has more processors than the set has room for.
        Err(_) => allowed_by_status(&Tree::new("/")).unwrap_or_else(|| {
            let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            (0..u32::try_from(count).unwrap_or(u32::MAX)).collect()
        }),
    }
}

/// Reads the affinity mask from the kernel's text, which can have any length.
fn allowed_by_status(tree: &Tree) -> Option<CpuList> {
    let status = tree.text("/proc/thread-self/status")?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    CpuList::parse(list).ok().filter(|list| !list.is_empty())
}

/// Returns the processors of each existing NUMA node.
pub(super) fn nodes(tree: &Tree) -> Result<BTreeMap<u32, CpuList>, PlacementError> {
    let possible = tree.list(format!("{NODES}/possible"))?.unwrap_or_default();
    let mut nodes = BTreeMap::new();
    for node in possible.iter() {
        // A possible node need not exist.
        if let Some(processors) = tree.list(format!("{NODES}/node{node}/cpulist"))? {
            nodes.insert(node, processors);
        }
    }
    Ok(nodes)
}

/// Adds the description of the usable processors that the mode needs.
pub(super) fn describe(
    tree: &Tree,
    mode: BindingMode,
    mut topology: Topology,
) -> Result<Topology, PlacementError> {
    if mode == BindingMode::Node {
        return Ok(topology);
    }
    for processor in topology.allowed.iter() {
        let directory = format!("{PROCESSORS}/cpu{processor}");
        let mut described = Processor::default();
        match mode {
            BindingMode::Node => {}
            BindingMode::Socket => {
                let package = tree.number(format!("{directory}/topology/physical_package_id"));
                described.package = package.and_then(|number| i32::try_from(number).ok());
            }
            BindingMode::Exclusive => {
                let siblings = tree.list(format!("{directory}/topology/thread_siblings_list"))?;
                described.core = siblings.unwrap_or_default();
            }
            BindingMode::CoreComplex => {
                described.cache = last_cache(tree, &format!("{directory}/cache"))?;
            }
        }
        topology.processors.insert(processor, described);
    }
    Ok(topology)
}

/// Returns the processors that share the data cache of the highest level.
/// Empty if there is no such cache.
fn last_cache(tree: &Tree, directory: &str) -> Result<CpuList, PlacementError> {
    let mut highest = 0;
    let mut shared = CpuList::new();
    for name in tree.names(directory) {
        let number = name.strip_prefix("index").map(str::parse::<u32>);
        if !matches!(number, Some(Ok(_))) {
            continue;
        }
        let kind = tree.text(format!("{directory}/{name}/type"));
        if !matches!(kind.as_deref(), Some("Unified" | "Data")) {
            continue;
        }
        let level = tree.number(format!("{directory}/{name}/level"));
        if let Some(level) = level.filter(|level| *level > highest) {
            highest = level;
            let list = tree.list(format!("{directory}/{name}/shared_cpu_list"))?;
            shared = list.unwrap_or_default();
        }
    }
    Ok(shared)
}

/// Returns the tightest quota of our groups and their ancestors.
pub(super) fn cpu_limit(tree: &Tree) -> Option<CpuLimit> {
    let groups = tree.text("/proc/self/cgroup")?;
    let mounts = tree.text("/proc/self/mountinfo")?;
    let limits =
        directories("cpu", &groups, &mounts)
            .into_iter()
            .filter_map(|(version, directory)| {
                let (quota, file) = match version {
                    Version::V2 => {
                        let file = directory.join("cpu.max");
                        (Quota::from_cpu_max(&tree.text(&file)?)?, file)
                    }
                    Version::V1 => {
                        let file = directory.join("cpu.cfs_quota_us");
                        let period = tree.text(directory.join("cpu.cfs_period_us"))?;
                        (Quota::from_cfs(&tree.text(&file)?, &period)?, file)
                    }
                };
                Some(CpuLimit {
                    quota,
                    file: file.display().to_string(),
                })
            });
    CpuLimit::tightest(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_ask_for_the_mask_agree() {
        assert_eq!(allowed_by_status(&Tree::new("/")), Some(affinity()));
    }
}
