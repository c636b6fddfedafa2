//! Tests that kill processes of the launcher.
//!
//! No process of the run may remain, and the kill must affect no other process.

use std::fs;
use std::time::Duration;

use rdzv_testing::pids;
use rustix::process::Signal;

use crate::harness::{Running, ends_within, kill, run_fixture, run_shell, run_shell_after};

/// Time limit for the exit on a busy machine; an exit usually takes one second.
const GONE: Duration = Duration::from_secs(20);

/// Starts two workers that ignore SIGTERM and leave three kinds of processes.
///
/// Each has a child, a child in a separate session, and an orphan.
fn families(flags: &[&str]) -> Running {
    let steps = [
        "ignore:15",
        "child:hang",
        "child-in-session:hang",
        "orphan:hang",
        "out:ready",
        "hang",
    ];
    let running = run_fixture(&[&["--nproc-per-node", "2"], flags].concat(), &steps).start();
    running.stdout.await_text("ready\n", 2);
    running
}

// SCN-A31
#[test]
fn killing_the_launcher_leaves_nothing() {
    for flags in [&[][..], &["--signals-to-handle", "SIGUSR1"]] {
        let running = families(flags);
        running.signal(Signal::KILL);
        assert!(running.all_gone_within(GONE));
        running.wait().expect(-9);
    }
}

// SCN-A31, for the agent
#[test]
fn killing_the_agent_leaves_nothing() {
    let running = families(&[]);
    kill(running.agent_pid(), Signal::KILL);
    assert!(running.all_gone_within(GONE));
    running.wait().expect(-9);
}

/// Processes of a launch, in the order in which they start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ours {
    Keeper,
    Guard,
    Agent,
}

use Ours::{Agent, Guard, Keeper};

#[track_caller]
fn kill_together(stopped: Option<Ours>, killed: &[Ours]) {
    let running = families(&[]);
    let ours = [
        Some(running.pid()),
        pids::guard(running.pid()),
        Some(running.agent_pid()),
    ];
    // Signals go to descriptors, because the second process may have exited already.
    let opened = ours.map(|pid| pids::open(pid.unwrap()).unwrap());
    let send = |which: Ours, signal| pids::signal(&opened[which as usize], signal);
    if let Some(which) = stopped {
        send(which, Signal::STOP);
        // The keeper resumes a stopped guard.
        if which != Guard {
            pids::wait_for_state(ours[which as usize].unwrap(), 'T');
        }
    }
    for which in killed {
        send(*which, Signal::KILL);
    }
    assert!(running.all_gone_within(GONE), "{stopped:?} {killed:?}");
    if stopped == Some(Keeper) {
        send(Keeper, Signal::CONT);
    }
    running.wait().expect(-9);
}

#[test]
fn when_any_two_are_killed_everything_goes() {
    for (first, second) in [(Keeper, Agent), (Keeper, Guard), (Guard, Agent)] {
        kill_together(None, &[first, second]);
        kill_together(None, &[second, first]);
    }
}

#[test]
fn when_one_is_killed_while_another_is_stopped_everything_goes() {
    for (one, other) in [(Keeper, Agent), (Keeper, Guard), (Guard, Agent)] {
        kill_together(Some(one), &[other]);
        kill_together(Some(other), &[one]);
    }
    kill_together(Some(Agent), &[Keeper, Guard]);
    kill_together(Some(Guard), &[Keeper, Agent]);
}

/// Script of four kinds of workers, which all ignore SIGTERM.
///
/// The first worker has children that fork and exit, another has a child in a separate session, and
/// another has a doubly forked process. One worker is stopped.
const WORKER: &str = "trap '' TERM
    case $LOCAL_RANK in
    0) while :; do (setsid sleep 0.2 &); sleep 0.01; done & ;;
    1) setsid sleep 1000 & ;;
    2) (setsid sh -c 'sleep 1000 & exec sleep 1000' &) ;;
    3) sleep 1000 & setsid sleep 1000 & ;;
    esac
    echo up
    if [ $LOCAL_RANK = 3 ]; then kill -STOP $$$$; fi
    while :; do sleep 1000; done";

/// Kills one or two of the processes at a random moment.
///
/// Another process may be stopped at that time.
fn kill_at_random(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let running = run_shell("--nproc-per-node 4", WORKER).start();
    let keeper = running.pid();
    if random.bool() {
        // A moment during the start, when some of the processes do not exist yet.
        let moment = Duration::from_micros(random.u64(..60_000));
        assert!(!ends_within(keeper, moment));
    } else {
        running.stdout.await_text("up\n", 4);
    }
    // Signals go to descriptors, because the kernel may reuse a process id.
    let ours = [Some(keeper), pids::guard(keeper), pids::agent(keeper)];
    let ours = ours.map(|pid| pid.and_then(pids::open));
    let mut order = [Keeper, Guard, Agent];
    random.shuffle(&mut order);
    let killed = &order[..random.usize(1..=2)];
    let stopped =
        (killed.len() == 1 && random.u8(..4) == 0 && order[1] != Keeper).then_some(order[1]);
    let send = |which: Ours, signal| {
        let process = ours[which as usize].as_ref();
        process.is_some_and(|process| pids::signal(process, signal))
    };
    stopped.map(|which| send(which, Signal::STOP));
    let hit = killed.iter().filter(|which| send(**which, Signal::KILL));
    if hit.count() == 0 {
        // None of the chosen processes existed yet.
        send(Keeper, Signal::KILL);
    }
    let gone = running.all_gone_within(GONE) && ends_within(keeper, GONE);
    assert!(
        gone,
        "seed {seed}: killed {killed:?}, stopped {stopped:?}: {:?}",
        running.processes()
    );
    running.wait();
}

/// `KILL_RUNS=200` sets the number of runs, and `KILL_SEED=N` the first seed.
#[test]
fn whichever_of_the_launchers_processes_are_killed_nothing_is_left() {
    let setting =
        |name, usual| std::env::var(name).map_or(usual, |text: String| text.parse().unwrap());
    let first = setting("KILL_SEED", 0);
    (first..first + setting("KILL_RUNS", 12)).for_each(kill_at_random);
}

#[test]
fn the_guard_has_a_name_of_its_own() {
    let running = families(&[]);
    let guard = pids::guard(running.pid()).unwrap();
    for file in ["comm", "cmdline"] {
        let name = fs::read_to_string(format!("/proc/{guard}/{file}")).unwrap();
        assert_eq!(name.trim_end_matches(['\n', '\0']), "launch-guard");
    }
}

#[test]
fn children_that_were_there_before_are_not_touched() {
    // The shell executes the keeper, which therefore inherits two foreign children. One of them
    // leaves its session. The children lose the marker by which the test finds processes of the
    // run.
    let first = "env -i sleep 1000 2>&- >&- & echo $! > foreign
        env -i setsid sleep 1000 2>&- >&- & echo $! >> foreign";
    let ended = run_shell_after(first, "", "exit 0").expect(0);
    for foreign in ended
        .text("foreign")
        .lines()
        .map(|line| line.parse().unwrap())
    {
        assert!(pids::state(foreign).is_some(), "{foreign} was hit");
        kill(foreign, Signal::KILL);
    }
}
