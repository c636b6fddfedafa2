//! Tests of the status row during waits, on each backend and for each cause.

use std::fs;
use std::net::TcpListener;

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, gettid};
use rdzv_testing::Words;

use crate::job::{Running, run_shell};

fn flags(backend: &str, endpoint: &str, more: impl Words) -> Vec<String> {
    let flags = format!(
        "--nproc-per-node 2 --rdzv-backend {backend} --rdzv-id job --rdzv-endpoint {endpoint} \
         --local-addr 127.0.0.1"
    );
    (&*flags, more).words()
}

fn start(backend: &str, endpoint: &str, more: impl Words) -> Running {
    run_shell(flags(backend, endpoint, more), "echo hi $RANK").start_on(120, 40)
}

/// Waits until the last row begins with `row`, and returns the rest of the row.
#[track_caller]
fn wait_for_row(run: &Running, row: &str) -> String {
    let screen = run.wait_for(row, |screen| {
        screen.last().is_some_and(|last| last.starts_with(row))
    });
    let screen = screen.last().unwrap();
    screen.strip_prefix(row).unwrap().to_owned()
}

fn free_endpoint() -> String {
    format!("127.0.0.1:{}", rdzv_testing::free_port())
}

#[test]
fn the_row_says_which_nodes_are_awaited_and_is_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state").display().to_string();
    let at_file = ["--nnodes", "3", "--rdzv-conf", "store_type=file"];
    for (endpoint, more) in [(free_endpoint(), &at_file[..2]), (file, &at_file[..])] {
        let first = start("c10d", &endpoint, more);
        let rest = wait_for_row(&first, "waiting for nodes: 1 of 3 (127.0.0.1) \u{b7} ");
        assert!(
            rest.contains(" left \u{b7} start the same command on the other nodes \u{b7} 0:"),
            "{rest}"
        );
        let screen = first.screen();
        let said = screen
            .iter()
            .filter(|row| row.contains("waiting for nodes"))
            .count();
        assert_eq!(said, 1, "{screen:?}");
        // The next reminder would appear only 30 s after the beginning.
        let second = start("c10d", &endpoint, more);
        wait_for_row(&first, "waiting for nodes: 2 of 3 (127.0.0.1) \u{b7} ");
        second.press(b"\x03");
        second.end();
        wait_for_row(&first, "waiting for nodes: 1 of 3 (127.0.0.1) \u{b7} ");
        first.press(b"\x03");
        first.end();
    }
}

#[test]
fn the_row_says_that_a_node_is_in_reserve() {
    let endpoint = free_endpoint();
    let more = "--nnodes 1:1";
    let script = "mkfifo fifo$RANK; touch on$RANK; read go < fifo$RANK";
    let first = run_shell(flags("c10d", &endpoint, more), script).start();
    first.wait_for_file("on0");
    first.wait_for_file("on1");
    let spare = start("c10d", &endpoint, more);
    wait_for_row(&spare, "in reserve: the job has its 1 node (127.0.0.1)");
    for rank in 0..2 {
        fs::write(first.path(&format!("fifo{rank}")), "go\n").unwrap();
    }
    first.lines_of_success();
    spare.lines_of_success();
}

#[test]
fn the_row_says_why_the_endpoint_does_not_answer() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let free = free_endpoint();
    let unknown = "no-such-host.invalid:29400";
    let is_client = "--nnodes 2 --rdzv-conf is_host=0";
    let patient = "--nnodes 2 --rdzv-conf read_timeout=60";
    let at = |endpoint: &str| {
        let (host, port) = endpoint.split_once(':').unwrap();
        format!("--nnodes 2 --node-rank 1 --master-addr {host} --master-port {port}")
    };
    let no_store =
        |endpoint: &str, why: &str| format!("no store has answered at {endpoint} ({why}");
    let no_etcd = |endpoint: &str| format!("the etcd endpoint {endpoint} has not answered for ");
    let (refused, lookup) = ("Connection refused", "failed to lookup");
    let accepted = "it accepted the connection but sent nothing";
    let cases = [
        ("c10d", &*free, is_client, no_store(&free, refused)),
        ("c10d", &silent, is_client, no_store(&silent, accepted)),
        ("static", &free, &at(&free), no_store(&free, refused)),
        ("static", &silent, &at(&silent), no_store(&silent, accepted)),
        ("static", unknown, &at(unknown), no_store(unknown, lookup)),
        ("etcd", unknown, patient, no_etcd(unknown)),
        ("etcd-v2", unknown, patient, no_etcd(unknown)),
        ("etcd", &free, patient, no_etcd(&free)),
        ("etcd", &silent, patient, no_etcd(&silent)),
        ("etcd-v2", &free, patient, no_etcd(&free)),
        ("etcd-v2", &silent, patient, no_etcd(&silent)),
        ("c10d", unknown, is_client, no_store(unknown, lookup)),
    ];
    let runs = cases
        .each_ref()
        .map(|(backend, endpoint, more, _)| start(backend, endpoint, *more));
    for (run, (backend, _, _, row)) in runs.into_iter().zip(&cases) {
        let rest = wait_for_row(&run, row);
        if !row.contains(unknown) {
            assert!(rest.contains(" left \u{b7} "), "{backend}: {rest}");
        }
        run.press(b"\x03");
        run.end();
    }
}

#[test]
fn the_row_of_node_0_says_how_many_others_have_come() {
    let free = free_endpoint();
    let (host, port) = free.split_once(':').unwrap();
    let node = |rank| {
        let more =
            format!("--nnodes 3 --node-rank {rank} --master-addr {host} --master-port {port}");
        start("static", &free, &*more)
    };
    let first = node("0");
    let rest = wait_for_row(
        &first,
        &format!("waiting for nodes: 1 of 3 joined at {free} \u{b7} "),
    );
    assert!(
        rest.contains(" left \u{b7} start the same command on the other nodes"),
        "{rest}"
    );
    let others = [node("1"), node("2")];
    for run in others.into_iter().chain([first]) {
        run.lines_of_success();
    }
}

#[test]
fn the_row_says_which_workers_are_awaited_before_a_restart() {
    let script = "
trap '' TERM
touch on$RANK
until [ -e on0 -a -e on1 ]; do sleep 0.01; done
if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then exit; fi
if [ $RANK = 0 ]; then exit 3; fi
mkfifo fifo; read go < fifo";
    let run = run_shell("--nproc-per-node 2 --max-restarts 1", script).start_on(120, 40);
    let row = run.wait_for("the wait for rank 1", |screen| {
        screen
            .last()
            .is_some_and(|row| row.contains("waiting for rank 1 to exit \u{b7} 0:2"))
    });
    let row = row.last().unwrap();
    assert!(
        row.contains(" left \u{b7} then SIGKILL follows \u{b7} "),
        "{row}"
    );
    fs::write(run.path("fifo"), "go\n").unwrap();
    run.lines_of_success();
}

/// Starts two workers: the first one fails, and a debugger holds the second.
///
/// This thread is the debugger. The kernel reports the death of a process first to its debugger,
/// and to its parent only after the debugger has released the process.
fn held_by_a_debugger() -> (Running, Pid) {
    let script = "
echo $$$$ > pid$RANK; mv pid$RANK on$RANK
until [ -e go ]; do sleep 0.01; done
if [ $RANK = 0 ]; then exit 3; fi
exec sleep 1000";
    let flags = "--nproc-per-node 2 --shutdown-timeout 1";
    let run = run_shell(flags, script).start_on(120, 40);
    run.wait_for_file("on1");
    let worker = fs::read_to_string(run.path("on1")).unwrap();
    let worker = Pid::from_raw(worker.trim().parse().unwrap());
    ptrace::seize(worker, ptrace::Options::empty()).unwrap();
    fs::write(run.path("go"), "").unwrap();
    (run, worker)
}

/// Releases the dead worker: the debugger collects its exit status.
fn let_go(worker: Pid) {
    waitpid(worker, Some(WaitPidFlag::__WALL)).unwrap();
}

#[test]
fn the_row_says_that_killed_workers_are_awaited() {
    let (run, worker) = held_by_a_debugger();
    let row = run.wait_for("the wait for killed workers", |screen| {
        let row = screen.last();
        row.is_some_and(|row| row.contains("waiting for rank 1 to exit after SIGKILL"))
    });
    let row = row.last().unwrap();
    assert!(
        row.contains(" left \u{b7} then the agent stops waiting \u{b7} "),
        "{row}"
    );
    let_go(worker);
    let (code, lines) = run.end();
    assert_eq!(code, Some(1));
    let said = lines.join(" ");
    assert!(
        said.contains("1 more: rank 1: exit code -9 (SIGKILL)"),
        "{said}"
    );
    assert!(!said.contains("stops waiting"), "{said}");
}

#[test]
fn killed_workers_that_do_not_end_are_given_up() {
    let (mut run, worker) = held_by_a_debugger();
    run.wait_for("the wait for what is left", |screen| {
        let row = screen.last();
        let wait = "waiting for processes that workers left behind to exit";
        row.is_some_and(|row| row.contains(wait))
    });
    let status = run.wait();
    let tracer = gettid();
    let said = run.lines().join(" ");
    let line = format!(
        "Process {worker} was killed, but process {tracer} traces it and has not released it; the \
         agent stops waiting for it"
    );
    assert!(said.contains(&line), "{said}");
    let_go(worker);
    let (code, _) = run.end_after(status);
    assert_eq!(code, Some(1));
}

#[test]
fn the_row_says_that_the_workers_of_other_nodes_are_awaited() {
    let endpoint = free_endpoint();
    let more = "--nnodes 2";
    let script = "
if [ $GROUP_RANK = 0 ]; then exit; fi
mkfifo fifo$LOCAL_RANK; touch on$LOCAL_RANK; read go < fifo$LOCAL_RANK";
    let nodes =
        [(), ()].map(|()| run_shell(flags("c10d", &endpoint, more), script).start_on(120, 40));
    let is_late = |run: &Running| run.path("on0").exists() && run.path("on1").exists();
    let row =
        "the workers of this node have succeeded \u{b7} waiting for the workers of the other nodes";
    let waits = |run: &Running| {
        let screen = run.screen();
        screen.last().is_some_and(|last| last.contains(row))
    };
    let deadline = std::time::Instant::now() + rdzv_testing::DEADLINE;
    while !nodes.iter().any(waits) {
        assert!(
            std::time::Instant::now() < deadline,
            "{:?}",
            nodes.each_ref().map(|run| run.screen())
        );
        // Either node may be the one that arrives early.
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
    let late = nodes.iter().find(|run| is_late(run)).unwrap();
    for rank in 0..2 {
        fs::write(late.path(&format!("fifo{rank}")), "go\n").unwrap();
    }
    for run in nodes {
        run.lines_of_success();
    }
}
