//! Tests of signals to the launcher: receivers, duration, remaining processes.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Running, ends_within, free_port, kill, run_fixture, run_shell, shell};

/// Script of a worker that prints when it is ready, and the signal it receives.
const TELLS: &str = "for s in TERM INT HUP QUIT USR1; do trap \"echo got $s; exit 0\" $s; done; \
                     echo ready; while :; do sleep 60 & wait $!; done";

// SCN-A27
#[test]
fn workers_get_the_signal_that_the_launcher_got() {
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
    ] {
        let running = run_shell("--nproc-per-node 2", TELLS)
            .env("OMP_NUM_THREADS", "1")
            .start();
        running.stdout.await_text("ready\n", 2);
        let launcher = running.pid();
        running.signal(signal);
        let ended = running.wait().expect(1);
        let got = format!("got {name}");
        assert_eq!(ended.sorted(), [&*got, &*got, "ready", "ready"]);
        let number = signal.as_raw();
        let received = format!("Received {number} death signal, shutting down workers");
        let times = ended.stderr.matches(&received).count();
        assert_eq!(times, 1, "{}", ended.stderr);
        let last = format!("SignalException: Process {launcher} got signal: {number}");
        ended.assert_last_error("", &[&last]);
    }
}

// SCN-A28
#[test]
fn workers_that_ignore_it_are_killed_after_the_shutdown_timeout() {
    let flags = "--nproc-per-node 2 --shutdown-timeout 3";
    let running = run_fixture(flags, "ignore:15 out:ready hang").start();
    running.stdout.await_text("ready\n", 2);
    let before = Instant::now();
    running.signal(Signal::TERM);
    let ended = running.wait().expect(1);
    let took = before.elapsed();
    assert!((3.0..15.0).contains(&took.as_secs_f64()), "{took:?}");
    ended.assert_stderr("via 15, forcefully exiting via 9");
}

// SCN-A29
#[test]
fn the_shutdown_timeout_holds_for_siblings_of_a_failed_worker_too() {
    let steps = "rank=0?ignore:15 rank=0?write:ready:x rank=1?await:ready rank=1?exit:7 hang";
    let job = run_fixture("--nproc-per-node 2 --shutdown-timeout 3", steps);
    let ended = job.pipe("ready").expect(1);
    let took = ended.took.as_secs_f64();
    assert!((3.0..6.0).contains(&took), "{took}");
    ended.assert_stderr("exitcode  : -9 (pid: ");
}

// SCN-A30
#[test]
fn repeated_signals_leave_no_worker_alive() {
    let flags = "--nproc-per-node 2 --shutdown-timeout 60";
    let running = run_fixture(flags, "ignore:15,2,1 out:ready hang").start();
    running.stdout.await_text("ready\n", 2);
    for signal in [Signal::TERM, Signal::INT] {
        running.signal(signal);
        let received = format!("Received {} death signal", signal.as_raw());
        running.stderr.await_text(&received, 1);
    }
    running.signal(Signal::HUP);
    // `wait` asserts that no process is left.
    running.wait().expect(1);
}

// SCN-A33
#[test]
fn a_signal_can_be_added_to_those_that_are_handled() {
    let running = run_shell("--signals-to-handle SIGUSR1,SIGTERM", TELLS).start();
    running.stdout.await_text("ready\n", 1);
    running.signal(Signal::USR1);
    let ended = running.wait().expect(1);
    assert_eq!(ended.stdout, "ready\ngot USR1\n");
}

// SCN-A33
#[test]
fn a_signal_that_is_not_handled_ends_the_launcher_and_everything_else() {
    for (flags, sent) in [
        (&[][..], Signal::ALARM),
        (&["--signals-to-handle", "SIGUSR1"], Signal::TERM),
    ] {
        let running = run_shell(flags, TELLS).start();
        running.stdout.await_text("ready\n", 1);
        running.signal(sent);
        running.wait().expect(-sent.as_raw());
    }
}

/// Starts two workers that print SIGUSR1 and SIGUSR2; SIGTERM ends them.
fn workers_that_tell(before: &str) -> Running {
    let script = "trap 'echo got USR1' USR1; trap 'echo got USR2' USR2; trap 'exit 0' TERM; \
                  sleep 1000 & echo ready; while :; do wait $!; done";
    let launch = format!(
        "{before} exec \"$RDZV\" run --nproc-per-node 2 --no-python sh -c '{}'",
        script.replace('\'', "'\\''")
    );
    let running = shell(&launch).start();
    running.stdout.await_text("ready\n", 2);
    running
}

#[test]
fn signals_for_the_workers_reach_each_of_them_once_and_end_nothing() {
    let running = workers_that_tell("");
    // Some schedulers signal all processes of a job, and some only the launcher. The workers'
    // children have no handler, so they receive no signal here.
    for (pid, command) in running.processes() {
        if !command.starts_with("sleep") {
            kill(pid, Signal::USR1);
        }
    }
    running.stdout.await_text("got USR1\n", 2);
    running.signal(Signal::USR2);
    running.stdout.await_text("got USR2\n", 2);
    running.signal(Signal::TERM);
    let ended = running.wait().expect(1);
    let said = ["got USR1", "got USR2", "ready"];
    assert_eq!(ended.sorted(), said.map(|line| [line; 2]).concat());
}

#[test]
fn a_signal_that_was_ignored_is_ignored_by_launcher_and_workers() {
    let script = "grep SigIgn /proc/self/status; echo ready; exec sleep 1000";
    let before = "trap '' USR1 INT HUP;";
    let launch = format!("{before} exec \"$RDZV\" run --no-python sh -c '{script}'");
    let running = shell(&launch).start();
    running.stdout.await_text("ready\n", 1);
    let ignored = [Signal::USR1, Signal::INT, Signal::HUP];
    for signal in ignored {
        running.signal(signal);
    }
    running.signal(Signal::TERM);
    let ended = running.wait().expect(1);
    ended.assert_stderr("got signal: 15");
    let line = ended.stdout.lines().next().unwrap();
    let mask = line.rsplit(':').next().unwrap().trim();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    for signal in ignored {
        assert_ne!(mask & (1 << (signal.as_raw() - 1)), 0, "{line}");
    }
}

#[test]
fn a_signal_that_was_blocked_is_taken_all_the_same() {
    let script = "grep SigBlk /proc/self/status; echo ready; exec sleep 1000";
    let launch = format!(
        "exec env --block-signal=TERM --block-signal=USR1 \"$RDZV\" run --no-python sh -c '{script}'"
    );
    let running = shell(&launch).start();
    running.stdout.await_text("ready\n", 1);
    running.signal(Signal::TERM);
    let ended = running.wait().expect(1);
    let mask = ended.stdout.lines().next().unwrap();
    assert_eq!(mask, "SigBlk:\t0000000000000000");
}

#[test]
fn a_signal_before_workers_are_started_is_what_the_launcher_dies_of() {
    for signal in [Signal::TERM, Signal::INT] {
        // The first of two nodes waits for the second, which never joins.
        let port = free_port();
        let flags = format!("--nnodes 2 --node-rank 0 --master-port {port}");
        let running = run_shell(&*flags, "true").start();
        running.listens_at(port);
        running.signal(signal);
        running.wait().expect(-signal.as_raw());
    }
}

/// Shell code that makes descriptor 3 a full pipe.
const FULL_PIPE: &str = "exec 3<>stalled; \
    dd if=/dev/zero of=stalled oflag=nonblock bs=4096 count=1000 2>dd.txt;";

/// Starts a script with the full pipe, and waits until its worker is ready.
fn start_with_full_pipe(script: &str) -> Running {
    let job = shell(&format!("{FULL_PIPE} {script}")).pipe("stalled");
    let running = job.pipe("ready").start();
    fs::read(running.path("ready")).unwrap();
    running
}

#[test]
fn a_run_that_is_stopped_ends_although_nobody_reads_its_console() {
    // The full pipe receives log lines, teed lines, and the workers' stderr.
    for (flags, worker) in [
        ("", "exec 2>/dev/null"),
        ("--tee 3", "yes x | head -c 300000"),
        ("", "yes x | head -c 30000 >&2"),
    ] {
        let script = format!(
            "exec \"$RDZV\" run {flags} --shutdown-timeout 1 --log-dir logs \
                 --events-file events --no-python \
                 sh -c 'trap \"\" TERM; {worker}; echo > ready; while :; do sleep 1; done' >&3 2>&3"
        );
        let running = start_with_full_pipe(&script);
        let before = Instant::now();
        running.signal(Signal::TERM);
        let ended = running.wait().expect(1);
        let took = before.elapsed();
        assert!(took < Duration::from_secs(10), "{flags} {worker}: {took:?}");
        let events = ended.text("events");
        let dropped = events.lines().find(|line| line.contains("output_dropped"));
        assert_eq!(dropped.is_some(), worker.contains("yes"), "{events}");
    }
}

#[test]
fn a_console_that_nobody_reads_does_not_keep_workers_of_a_killed_run_alive() {
    let worker = "setsid yes >&2 & echo > ready; wait";
    let script = format!("exec \"$RDZV\" run --no-python sh -c '{worker}' 2>&3");
    let running = start_with_full_pipe(&script);
    running.signal(Signal::KILL);
    assert!(running.all_gone_within(Duration::from_secs(10)));
    running.wait().expect(-9);
}

#[test]
fn a_run_that_waits_for_the_reader_of_its_console_can_be_stopped() {
    let script = "exec \"$RDZV\" run --no-python sh -c 'echo > ready; exit 7' 2>&3";
    let running = start_with_full_pipe(script);
    assert!(!ends_within(running.pid(), Duration::from_secs(1)));
    running.signal(Signal::TERM);
    assert!(ends_within(running.pid(), Duration::from_secs(10)));
    running.wait().expect(1);
}

#[test]
fn a_console_that_nobody_reads_does_not_hold_up_the_stop() {
    // The pipe is full before the launch, with its 64 KiB. The workers do not write to the pipe.
    let script = format!(
        "{FULL_PIPE} exec \"$RDZV\" run --nproc-per-node 2 --no-python \
             sh -c 'exec 2>/dev/null; {TELLS}' 2>&3"
    );
    let running = shell(&script).pipe("stalled").start();
    running.stdout.await_text("ready\n", 2);
    running.signal(Signal::TERM);
    running.stdout.await_text("got TERM\n", 2);
    // `read` returns when the last writer, the keeper, has exited.
    let said = fs::read(running.path("stalled")).unwrap();
    let said = String::from_utf8_lossy(&said);
    running.wait().expect(1);
    assert_eq!(said.matches('\0').count(), 64 << 10);
    assert!(said.contains("Received 15 death signal"), "{said}");
    assert!(said.contains("got signal: 15"), "{said}");
}
