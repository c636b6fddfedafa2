//! Any one or two of the launcher's processes are killed at a random moment: nothing is left, and
//! nothing hangs. `KILL_RUNS=200` makes more runs, `KILL_SEED=N` begins with another one.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdzv_testing::{Marker, Process, pids, program};
use rustix::process::Signal;

/// Number of runs without the variable.
const RUNS: u64 = 12;

/// No end takes longer on a busy machine; it is a second otherwise.
const LIMIT: Duration = Duration::from_secs(20);

/// One worker of each kind: with children that fork and end, with one in a session of its own, with
/// one that is doubly forked, and one that is stopped. All ignore SIGTERM.
const WORKER: &str = "trap '' TERM
    case $LOCAL_RANK in
    0) while :; do (setsid sleep 0.2 &); sleep 0.01; done & ;;
    1) setsid sleep 1000 & ;;
    2) (setsid sh -c 'sleep 1000 & exec sleep 1000' &) ;;
    3) sleep 1000 & setsid sleep 1000 & ;;
    esac
    echo up >&2
    if [ $LOCAL_RANK = 3 ]; then kill -STOP $$; fi
    while :; do sleep 1000; done";

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let marker = Marker::new();
    let mut command = Command::new(program("agent_harness"));
    command
        .args(["workers=4", "--", "/bin/sh", "-c"])
        // In arguments `$$` means `$`.
        .arg(WORKER.replace("$$", "$$$$"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    marker.mark(&mut command);
    let mut launch = Process::start(&mut command);
    let keeper = launch.pid();
    if random.bool() {
        // Into the start, where some of the processes are not there yet.
        let moment = Duration::from_micros(random.u64(..60_000));
        assert!(!pids::ends_within(keeper, moment));
    } else {
        let mut up = 0;
        while up < 4 {
            up += usize::from(launch.stderr.line_within(LIMIT).unwrap() == "up");
        }
    }
    // By descriptors: a number may be another process's when its turn comes.
    let ours = [Some(keeper), pids::guard(keeper), pids::agent(keeper)];
    let ours = ours.map(|pid| pid.and_then(pids::open));
    let names = ["keeper", "guard", "agent"];
    let mut order = [0, 1, 2];
    random.shuffle(&mut order);
    let killed = &order[..random.usize(1..=2)];
    let stopped = (killed.len() == 1 && random.u8(..4) == 0 && order[1] != 0).then_some(order[1]);
    let told = format!(
        "seed {seed}: killed {:?}, stopped {:?}",
        killed.iter().map(|which| names[*which]).collect::<Vec<_>>(),
        stopped.map(|which| names[which])
    );
    let send = |which: usize, signal| {
        if let Some(process) = &ours[which] {
            pids::signal(process, signal);
        }
    };
    if let Some(which) = stopped {
        send(which, Signal::STOP);
    }
    for which in killed {
        send(*which, Signal::KILL);
    }
    if killed.iter().all(|which| ours[*which].is_none()) {
        // None of them was there yet.
        send(0, Signal::KILL);
    }
    let ended = launch.wait_within(LIMIT);
    let left = marker.left_at(Instant::now() + LIMIT, None);
    if ended.is_none() || !left.is_empty() {
        marker.kill_all();
        panic!("{told}: the keeper ended as {ended:?}, {left:#?} are left");
    }
}

#[test]
fn whichever_of_the_launchers_processes_are_killed_nothing_is_left() {
    let first = variable("KILL_SEED", 0);
    for seed in first..first + variable("KILL_RUNS", RUNS) {
        run(seed);
    }
}
