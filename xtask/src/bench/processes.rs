//! Data of the kernel about the processes of a launcher.

use std::collections::BTreeSet;
use std::{fs, io};

use anyhow::Context;

/// Returns the processes of a launch except its workers and their descendants.
pub(super) fn launcher_processes(launcher: u32, workers: &BTreeSet<u32>) -> Vec<u32> {
    let mut found = vec![launcher];
    let mut next = 0;
    while let Some(&process) = found.get(next) {
        next += 1;
        let children = children(process);
        found.extend(
            children
                .into_iter()
                .filter(|child| !workers.contains(child)),
        );
    }
    found
}

/// Returns the children of a process, by the threads that started them.
pub(super) fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|text| {
            let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
            pids.collect::<Vec<u32>>()
        })
        .collect()
}

/// Returns the nanoseconds that the threads of these processes have run.
///
/// A thread that ends during the count does not count: the measured processes have the same threads
/// all the time.
pub(super) fn processor_time(processes: &[u32]) -> anyhow::Result<u64> {
    let mut sum = 0;
    for process in processes {
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let path = thread?.path().join("schedstat");
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if has_ended(&error) => continue,
                Err(error) => {
                    return Err(error).context(format!("failed to read {}", path.display()));
                }
            };
            let first = text.split_whitespace().next();
            sum += first
                .and_then(|number| number.parse::<u64>().ok())
                .with_context(|| format!("{} says '{text}'", path.display()))?;
        }
    }
    Ok(sum)
}

/// `true` if the thread has ended: its file is missing or unreadable.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Returns the proportional set size of these processes in MiB.
///
/// Pages that several processes share count once.
pub(super) fn proportional_size(processes: &[u32]) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for process in processes {
        let path = format!("/proc/{process}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))?;
        let kilobytes = kilobytes(&text, "Pss:");
        sum += kilobytes.with_context(|| format!("{path} has no Pss"))?;
    }
    Ok(sum / 1024.0)
}

fn kilobytes(text: &str, key: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_by_their_key() {
        let text = "VmPeak:\t  9000 kB\nVmHWM:\t  2048 kB\n";
        assert_eq!(kilobytes(text, "VmHWM:"), Some(2048.0));
        assert_eq!(kilobytes(text, "Pss:"), None);
    }

    #[test]
    fn this_process_has_a_size_and_has_run() {
        let us = [std::process::id()];
        assert!(proportional_size(&us).unwrap() > 0.1);
        // The kernel updates the count at intervals, so the process runs until there is a count.
        while processor_time(&us).unwrap() == 0 {}
        assert!(launcher_processes(us[0], &BTreeSet::new()).contains(&us[0]));
    }
}
