//! Readings of `/proc` about workers: usage, ownership and location.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rdzv_agent_proto::hang::progress::Usage;
use rdzv_agent_proto::hang::stacks::KernelState;
use rdzv_agent_proto::hang::uninterruptible::state_letter;
use rdzv_core::escape::escape;

use super::syscall;
use crate::process_stat::ProcessStat;

/// Limit on the ancestors of a process that the search for its worker checks.
const GENERATIONS: usize = 64;

/// Reads a file of the kernel.
/// Programs choose the names in such a file, which need not be valid text.
fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

/// Returns the usage of a process; `None` if there is no such process.
/// Values that only the owner of the process may read count as 0.
pub(crate) fn usage(pid: u32) -> Option<Usage> {
    let stat = ProcessStat::of(pid)?;
    Some(with_io(pid, stat.cpu))
}

fn with_io(pid: u32, cpu: Duration) -> Usage {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let field = |name: &str| {
        let line = io.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.trim().parse().ok())
            .unwrap_or(0)
    };
    Usage {
        cpu,
        read: field("rchar:"),
        written: field("wchar:"),
    }
}

/// Returns the total usage of the other processes in the workers' sessions.
/// The keys are the workers' process ids.
pub(crate) fn others_in_sessions(leaders: &[u32]) -> BTreeMap<u32, Usage> {
    let mut usages: BTreeMap<u32, Usage> = leaders
        .iter()
        .map(|leader| (*leader, Usage::default()))
        .collect();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Some(stat) = ProcessStat::of(pid) else {
            continue;
        };
        let session = stat.session.cast_unsigned();
        if pid != session
            && let Some(usage) = usages.get_mut(&session)
        {
            *usage = *usage + with_io(pid, stat.cpu);
        }
    }
    usages
}

/// Returns the worker that a process belongs to.
/// The process is the worker, is in its session, or descends from it.
pub(crate) fn worker_of(pid: u32, workers: &[u32]) -> Option<u32> {
    let mut current = pid;
    for _ in 0..GENERATIONS {
        if workers.contains(&current) {
            return Some(current);
        }
        let stat = ProcessStat::of(current)?;
        let session = stat.session.cast_unsigned();
        if workers.contains(&session) {
            return Some(session);
        }
        current = stat.parent.cast_unsigned();
    }
    None
}

/// Returns the kernel state of the process or thread with this directory.
/// For a process, this is the state of its main thread.
pub(crate) fn kernel_state_in(directory: &Path) -> KernelState {
    let read = |name: &str| text(&directory.join(name));
    KernelState {
        state: read("stat").and_then(|stat| state_letter(&stat)),
        // `0` is no function: the process is running, or this process may not read the function.
        wait_channel: read("wchan").filter(|text| !text.is_empty() && text != "0"),
        syscall: read("syscall").and_then(|text| syscall::name(&text)),
    }
}

/// Counts the other threads of a process, by name and wait channel.
pub(crate) fn threads(pid: u32) -> Vec<(String, u32)> {
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    let own = pid.to_string();
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        if task.file_name() == own.as_str() {
            continue;
        }
        let path = task.path();
        let name = text(&path.join("comm")).unwrap_or_default();
        let name = escape(&name);
        let kernel = kernel_state_in(&path);
        let kind = match (kernel.wait_channel, kernel.state) {
            (Some(channel), _) => format!("{name} in {channel}"),
            (None, Some('R')) => format!("{name} running"),
            (None, _) => name,
        };
        *kinds.entry(kind).or_default() += 1;
    }
    kinds.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::process_stat::TICK;

    #[test]
    fn a_sleeping_process_is_seen_where_it_sleeps() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        loop {
            let kernel = kernel_state_in(Path::new(&format!("/proc/{pid}")));
            // The process may still be on its way into the call, and then it runs.
            if kernel.syscall.as_deref() == Some("clock_nanosleep") && kernel.state == Some('S') {
                break;
            }
            std::thread::yield_now();
        }
        assert!(usage(pid).unwrap().cpu < Duration::from_secs(1));
        let us = std::process::id();
        assert_eq!(worker_of(pid, &[us]), Some(us));
        assert_eq!(worker_of(pid, &[pid]), Some(pid));
        assert_eq!(worker_of(1, &[pid]), None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(usage(pid), None);
        assert_eq!(worker_of(pid, &[us]), None);
    }

    #[test]
    fn what_children_in_the_session_use_is_seen() {
        let mut leader = Command::new("setsid")
            .args([
                "--wait",
                "sh",
                "-c",
                "sh -c 'while :; do :; done' & echo $$; wait",
            ])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(leader.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        let session: u32 = line.trim().parse().unwrap();
        loop {
            let used = others_in_sessions(&[session])[&session];
            if used.cpu >= TICK * 2 {
                break;
            }
            std::thread::yield_now();
        }
        let group = rustix::process::Pid::from_raw(i32::try_from(session).unwrap()).unwrap();
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        leader.wait().unwrap();
    }
}
