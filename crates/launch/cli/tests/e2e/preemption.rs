//! Tests of the preemption notice: its receivers, and the launcher's exit.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Running, free_port, kill, run_shell};

/// Script of a worker that prints its signals; exits 0.3 s after the notice.
///
/// The notice kills the process that the worker waits for, so the notice may arrive before the
/// wait.
const CHECKPOINTS: &str = "sleep 60 & waits=$!; trap 'echo got USR1; kill $waits 2> /dev/null' USR1; \
                           trap 'echo got TERM; exit 0' TERM; echo ready; wait $waits; \
                           sleep 0.3; test -s \"$RDZV_PREEMPT\" && echo the file is there; exit 0";

/// Starts two nodes with two workers each, over `c10d` or static rendezvous.
fn two_nodes(is_static: bool, flags: &[&str], script: &str) -> [Running; 2] {
    let port = free_port().to_string();
    let endpoint = format!("127.0.0.1:{port}");
    let nodes = ["0", "1"].map(|rank| {
        let mut all = vec!["--nnodes", "2", "--nproc-per-node", "2"];
        all.extend_from_slice(&if is_static {
            ["--node-rank", rank, "--master-port", &port]
        } else {
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint]
        });
        all.extend_from_slice(flags);
        run_shell(&all, script)
            .env("PET_LOCAL_ADDR", "127.0.0.1")
            .env("OMP_NUM_THREADS", "1")
            .start()
    });
    for node in &nodes {
        node.stdout.await_text("ready\n", 2);
    }
    nodes
}

#[test]
fn a_notice_to_one_agent_reaches_every_worker_of_every_node_once() {
    for is_static in [false, true] {
        let flags = ["--preempt-signal", "USR1", "--max-restarts", "3"];
        let nodes = two_nodes(is_static, &flags, CHECKPOINTS);
        // Some schedulers signal every process on one node, and no other node.
        for (pid, command) in nodes[1].processes() {
            if !command.starts_with("sleep") {
                kill(pid, Signal::USR1);
            }
        }
        for node in nodes {
            let ended = node.wait().expect(75);
            let file = "the file is there";
            let expected = ["got USR1", "got USR1", "ready", "ready", file, file];
            assert_eq!(ended.sorted(), expected, "{}", ended.stderr);
            let last = "preempted by SIGUSR1; the workers of this node exited after 0.";
            ended.assert_stderr(last);
        }
    }
}

#[test]
fn a_notice_that_reaches_all_agents_reaches_workers_once_too() {
    let nodes = two_nodes(false, &["--preempt-signal", "SIGUSR1"], CHECKPOINTS);
    for node in &nodes {
        node.signal(Signal::USR1);
    }
    for node in nodes {
        let ended = node.wait().expect(75);
        let times = ended.stdout.matches("got USR1").count();
        assert_eq!(times, 2, "{}", ended.stdout);
    }
}

#[test]
fn a_worker_without_a_handler_finds_the_file_and_is_not_killed_by_the_signal() {
    let script =
        "echo ready; until [ -s \"$RDZV_PREEMPT\" ]; do sleep 0.05; done; cat \"$RDZV_PREEMPT\"";
    for (name, signal) in [("USR1", Signal::USR1), ("TERM", Signal::TERM)] {
        let flags = ["--preempt-signal", name];
        let more = "--preempt-grace 100 --preempt-exit-code 7";
        let running = run_shell((&flags, more), script).start();
        running.stdout.await_text("ready\n", 1);
        running.signal(signal);
        let ended = running.wait().expect(7);
        let deadline: f64 = ended.stdout.lines().nth(1).unwrap().parse().unwrap();
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let left = deadline - now.as_secs_f64();
        assert!((0.0..101.0).contains(&left), "{left} s");
    }
}

#[test]
fn workers_that_do_not_end_are_stopped_after_the_shutdown_timeout_and_killed_after_the_next() {
    let script = "trap 'echo got USR1' USR1; trap 'echo got TERM' TERM; echo ready; \
                  while :; do sleep 60 & wait $!; done";
    let flags = "--preempt-signal USR1 --preempt-grace 1 --shutdown-timeout 1";
    let running = run_shell(flags, script).start();
    running.stdout.await_text("ready\n", 1);
    running.signal(Signal::USR1);
    running.stdout.await_text("got TERM\n", 1);
    let ended = running.wait().expect(1);
    assert_eq!(ended.stdout, "ready\ngot USR1\ngot TERM\n");
    let last = "not all workers of this node had exited with code 0";
    ended.assert_stderr(last);
}

#[test]
fn after_a_notice_nothing_is_restarted() {
    let script = "trap 'exit 9' USR1; echo ready; while :; do sleep 60 & wait $!; done";
    let flags = "--preempt-signal USR1 --max-restarts 3 --exit-code worker";
    let running = run_shell(flags, script).start();
    running.stdout.await_text("ready\n", 1);
    running.signal(Signal::USR1);
    let ended = running.wait().expect(128 + Signal::USR1.as_raw());
    assert_eq!(ended.stdout, "ready\n");
}

#[test]
fn the_second_notice_to_the_same_agent_is_a_request_to_stop() {
    let script =
        "trap 'echo got TERM; sleep 1000' TERM; echo ready; while :; do sleep 60 & wait $!; done";
    let flags = "--preempt-signal TERM --preempt-grace 1000 --shutdown-timeout 1";
    let running = run_shell(flags, script).start();
    running.stdout.await_text("ready\n", 1);
    running.signal(Signal::TERM);
    running.stdout.await_text("got TERM\n", 1);
    // Within 200 ms, it would count as the same signal.
    std::thread::sleep(Duration::from_millis(300));
    running.signal(Signal::TERM);
    running.wait().expect(1);
}

#[test]
fn the_first_task_has_slurm_queue_the_job_again_if_it_is_asked_to() {
    let scontrol = "#!/bin/sh\necho \"$@\" >> asked";
    for (task, array, expected) in [
        ("0", None, "requeue 4711\n"),
        ("0", Some(("4700", "3")), "requeue 4700_3\n"),
        ("1", None, ""),
    ] {
        let script = "trap 'exit 0' USR1; echo ready; while :; do sleep 60 & wait $!; done";
        let mut job = crate::harness::shell(&format!(
            "mkdir bin; mv scontrol bin; chmod +x bin/scontrol; PATH=$PWD/bin:$PATH; touch asked; \
             exec \"$RDZV\" run --preempt-signal USR1 --requeue-on-preempt --no-python sh -c \"{}\"",
            script.replace('$', "\\$")
        ))
        .file("scontrol", scontrol)
        .env("SLURM_JOB_ID", "4711")
        .env("SLURM_PROCID", task);
        if let Some((job_id, task_id)) = array {
            job = job
                .env("SLURM_ARRAY_JOB_ID", job_id)
                .env("SLURM_ARRAY_TASK_ID", task_id);
        }
        let running = job.start();
        running.stdout.await_text("ready\n", 1);
        running.signal(Signal::USR1);
        let ended = running.wait().expect(75);
        assert_eq!(ended.text("asked"), expected, "{}", ended.stderr);
        let is_said = ended.stderr.contains("requeued Slurm job");
        assert_eq!(is_said, !expected.is_empty());
    }
}
