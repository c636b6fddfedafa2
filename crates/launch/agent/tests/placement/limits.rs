//! Tests of control-group quotas.

use crate::machine::Machine;

fn limit(machine: &Machine) -> Option<String> {
    let limit = machine.seen_with("0-7").cpu_limit()?;
    Some(format!("{} {}", limit.quota.processors(), limit.file))
}

#[test]
fn the_tightest_quota_of_our_group_and_those_around_it_counts() {
    let machine = Machine::new();
    machine
        .file("/proc/self/cgroup", "0::/pods/pod7/train")
        .file(
            "/proc/self/mountinfo",
            "35 25 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        )
        .file("/sys/fs/cgroup/pods/cpu.max", "max 100000")
        .file("/sys/fs/cgroup/pods/pod7/cpu.max", "250000 100000")
        .file("/sys/fs/cgroup/pods/pod7/train/cpu.max", "400000 100000");
    let expected = "3 /sys/fs/cgroup/pods/pod7/cpu.max";
    assert_eq!(limit(&machine).as_deref(), Some(expected));
    machine.remove("/sys/fs/cgroup/pods/pod7/cpu.max");
    let expected = "4 /sys/fs/cgroup/pods/pod7/train/cpu.max";
    assert_eq!(limit(&machine).as_deref(), Some(expected));
    machine.file("/sys/fs/cgroup/pods/pod7/train/cpu.max", "max 100000");
    assert_eq!(limit(&machine), None);
}

#[test]
fn the_older_hierarchy_has_quotas_too() {
    let machine = Machine::new();
    let directory = "/sys/fs/cgroup/cpu,cpuacct/slurm/job_1";
    machine
        .file(
            "/proc/self/cgroup",
            "5:memory:/\n3:cpu,cpuacct:/slurm/job_1\n0::/",
        )
        .file(
            "/proc/self/mountinfo",
            "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
        )
        .file(&format!("{directory}/cpu.cfs_quota_us"), "-1")
        .file(&format!("{directory}/cpu.cfs_period_us"), "100000");
    assert_eq!(limit(&machine), None);
    machine.file(&format!("{directory}/cpu.cfs_quota_us"), "150000");
    assert_eq!(
        limit(&machine),
        Some(format!("2 {directory}/cpu.cfs_quota_us"))
    );
}

#[test]
fn a_machine_without_control_groups_has_no_limit() {
    assert_eq!(limit(&Machine::new()), None);
}
