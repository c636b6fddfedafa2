//! Tests of `rdzv run` as the first process of a container.
//!
//! The process has id 1 in a separate namespace. The kernel drops signals for which such a process
//! has no handler, and makes it the parent of every orphan. The tests need user namespaces
//! (`unshare -rpf`) and fail on a machine that does not allow them.

use rdzv_testing::pids;
use rustix::process::Signal;

use crate::harness::{Running, free_port, kill, shell};

/// Starts `rdzv run` with these arguments, as the process with id 1.
fn first(words: &str) -> Running {
    shell(&format!(
        "exec unshare -rpf --mount-proc \"$RDZV\" run {words}"
    ))
    .start()
}

/// Returns the keeper's process id outside the namespace.
fn keeper(running: &Running) -> i32 {
    pids::guard(running.pid()).unwrap()
}

#[test]
fn the_first_process_passes_sigterm_on_and_ends_with_143() {
    let script =
        "trap 'echo got TERM; exit 0' TERM; echo ready; while :; do sleep 60 & wait $!; done";
    let running = first(&format!(
        "--exit-code worker --nproc-per-node 2 --no-python sh -c \"{script}\"",
        script = script.replace('$', "\\$")
    ));
    running.stdout.await_text("ready\n", 2);
    kill(keeper(&running), Signal::TERM);
    let ended = running.wait().expect(143);
    assert_eq!(ended.sorted(), ["got TERM", "got TERM", "ready", "ready"]);
}

#[test]
fn the_first_process_ends_with_143_also_if_no_worker_was_started() {
    let port = free_port();
    let running = first(&format!(
        "--nnodes 2 --node-rank 0 --master-port {port} --no-python true"
    ));
    running.listens_at(port);
    kill(keeper(&running), Signal::TERM);
    running.wait().expect(143);
}

#[test]
fn orphans_are_collected_while_the_workers_run() {
    // The script counts processes, creates orphans, and waits until the count is as before. A
    // zombie would increase the count. A real-time signal, which has no name, ends one orphan.
    let script = "count() { set -- /proc/[0-9]*; echo $#; }; before=$(count); \
                  (for i in 1 2 3 4 5; do true & done; sh -c exit & sleep 1000 & kill -40 $!); \
                  tries=0; while [ $(count) -gt $before ]; do \
                  tries=$((tries + 1)); [ $tries -lt 500 ] || exit 9; sleep 0.02; done; echo $before";
    let ended = first(&format!("--no-python sh -c '{script}'"))
        .wait()
        .expect(0);
    // The five processes are keeper, guard, agent, worker, and the counting shell.
    assert_eq!(ended.stdout, "5\n");
}
