//! Tests of the memory and processor time of a launch.
//!
//! The benchmark measures wall time on a quiet machine. Other programs do not influence processor
//! time.

use crate::harness::{shell, torchrun};

// SCN-A60
#[test]
fn the_launchers_processes_take_few_megabytes() {
    // The agent is the parent of the worker, the guard that of the agent, the keeper that of both.
    let script = "read -r _ _ _ guard _ < /proc/$PPID/stat; \
                  read -r _ _ _ keeper _ < /proc/$guard/stat; \
                  grep -h VmHWM /proc/$PPID/status /proc/$guard/status /proc/$keeper/status";
    let ended = torchrun(["--no-python", "sh", "-c", script]).expect(0);
    let peaks: Vec<u64> = ended
        .stdout
        .lines()
        .map(|line| line.split_whitespace().nth(1).unwrap().parse().unwrap())
        .collect();
    assert_eq!(peaks.len(), 3, "{}", ended.stdout);
    let total_kib: u64 = peaks.iter().sum();
    // Unoptimised code is several times as large, and resident in all three processes.
    let most = if cfg!(debug_assertions) { 75 } else { 22 };
    assert!(total_kib < most * 1024, "{peaks:?} KiB");
}

// SCN-A60
#[test]
fn a_launch_takes_little_processor_time() {
    // `times` prints user and system time of the shell, then those of its children.
    let script = "for run in 0 1 2 3 4 5 6 7 8 9; do \
                  \"$RDZV\" run --no-python /bin/true || exit 1; done; times";
    let ended = shell(script).expect(0);
    let children = ended.stdout.lines().nth(1).unwrap();
    let seconds: f64 = children
        .split_whitespace()
        .map(|time| {
            let (minutes, seconds) = time.strip_suffix('s').unwrap().split_once('m').unwrap();
            minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
        })
        .sum();
    assert!(seconds / 10.0 < 1.2, "{seconds} s for ten launches");
}
