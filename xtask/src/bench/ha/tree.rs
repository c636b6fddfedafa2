//! The processes of this namespace: all are the experiment's.

use std::collections::BTreeMap;
use std::fs;
use std::process;

use nix::sys::signal::Signal;

use super::network::Network;
use crate::bench::launcher::signal;
use crate::bench::processes::children;

/// The oldest child of a process.
pub(super) fn first_child(process: u32) -> Option<u32> {
    children(process).into_iter().next()
}

/// The agent below a guard. What a dead agent has left is below the guard as well, until that has cleared it.
pub(super) fn agent(guard: u32) -> Option<u32> {
    let program = |process: u32| fs::read_link(format!("/proc/{process}/exe")).ok();
    let ours = program(guard)?;
    let mut children = children(guard).into_iter();
    children.find(|child| program(*child).as_ref() == Some(&ours))
}

/// Parent and command of each process that has not ended.
fn living() -> BTreeMap<u32, (u32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| Some((pid, parent(pid)?)))
        .collect()
}

fn parent(pid: u32) -> Option<(u32, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    let has_ended = words.next()? == "Z";
    let parent = words.next()?.parse().ok()?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    (!has_ended).then_some((parent, line))
}

/// Command lines of the processes that are below nobody whom we have started.
pub(super) fn orphans() -> Vec<String> {
    let living = living();
    let is_ours = |mut pid: u32| {
        while pid != process::id() {
            match living.get(&pid) {
                Some((parent, _)) => pid = *parent,
                None => return false,
            }
        }
        true
    };
    // The first process of the namespace started this one.
    let orphans = living
        .iter()
        .filter(|(pid, _)| **pid != 1 && !is_ours(**pid));
    orphans
        .map(|(pid, (_, line))| format!("{pid} {}", line.trim_end()))
        .collect()
}

/// Kills all processes but this one and those that hold the network.
pub(super) fn end_all(network: &Network) {
    let holders: Vec<u32> = network
        .machines
        .iter()
        .map(|machine| machine.pid())
        .collect();
    loop {
        let mut left = living();
        left.retain(|pid, _| *pid != 1 && *pid != process::id() && !holders.contains(pid));
        if left.is_empty() {
            return;
        }
        for pid in left.into_keys() {
            // It may have ended meanwhile.
            let _ = signal(pid, Signal::SIGKILL);
        }
    }
}
