//! `rdzv run` as the first process of a container: a process namespace of its own, in which it has the number 1.
//!
//! The kernel keeps signals from such a process that it has no handler for, and gives it every
//! orphan. Needs user namespaces (`unshare -rpf`); where a machine does not allow them the tests
//! fail.

use rdzv_testing::pids;
use rustix::process::Signal;

use crate::harness::{Running, free_port, kill, shell};

/// Starts `rdzv run` with these words, as a process with the number 1.
fn first(words: &str) -> Running {
    shell(&format!(
        "exec unshare -rpf --mount-proc \"$RDZV\" run {words}"
    ))
    .start()
}

/// Its number outside of the namespace.
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
    // Processes are counted before an orphan and until there are as few again; a zombie would be
    // one more. One of them is ended by a real-time signal, which has no name.
    let script = "count() { set -- /proc/[0-9]*; echo $#; }; before=$(count); \
                  (for i in 1 2 3 4 5; do true & done; sh -c exit & sleep 1000 & kill -40 $!); \
                  tries=0; while [ $(count) -gt $before ]; do \
                  tries=$((tries + 1)); [ $tries -lt 500 ] || exit 9; sleep 0.02; done; echo $before";
    let ended = first(&format!("--no-python sh -c '{script}'"))
        .wait()
        .expect(0);
    // Keeper, guard, agent, worker, and the shell that counts.
    assert_eq!(ended.stdout, "5\n");
}
