//! Quotas of our control groups.

use rdzv_agent_proto::topology::cgroup::{Version, directories};
use rdzv_agent_proto::topology::{CpuLimit, Quota};

use super::tree::Tree;

/// The tightest quota of our groups and their ancestors.
pub(super) fn cpu_limit(tree: &Tree) -> Option<CpuLimit> {
    let groups = tree.text("/proc/self/cgroup")?;
    let mounts = tree.text("/proc/self/mountinfo")?;
    let limits = directories(&groups, &mounts)
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
