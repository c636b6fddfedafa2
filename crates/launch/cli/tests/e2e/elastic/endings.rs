//! How the end of one node becomes the end of the others.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::restarts::{restartable, restartable_with};
use super::{PRINT_ROUND, Place, first_agent, kill_node, printed, store};
use crate::harness::{DEADLINE, Running, ends_within, kill};

// SCN-A45
#[test]
fn a_node_that_fails_for_good_ends_the_one_that_has_succeeded() {
    one_fails_after_the_other_has_succeeded(store());
}

// SCN-A45
#[test]
fn a_node_that_fails_for_good_tells_so_even_if_the_store_ends_with_it() {
    one_fails_after_the_other_has_succeeded(first_agent());
}

// A store that agents reattach to has the barrier of the end; without it nobody says that the
// others have succeeded.
#[test]
fn a_node_that_has_succeeded_does_not_wait_for_others_at_a_store_that_is_lost() {
    let place = restartable_with(&["--coordinator-timeout", "1"]);
    let flags = ["--nnodes=2"];
    let job = place.node(&flags, "echo started; cat go").pipe("go");
    let runs = job.start();
    super::await_participants(&place.endpoint, 1, |_| true);
    let succeeds = place.node(&flags, "echo done").start();
    runs.stdout.await_text("started\n", 1);
    succeeds.stdout.await_text("done\n", 1);
    let line = "the workers of this node have succeeded; waiting for those of the other nodes";
    succeeds.stderr.await_text(line, 1);
    for (pid, _) in place.store.as_ref().unwrap().processes() {
        kill(pid, Signal::KILL);
    }
    let before = Instant::now();
    let ended = succeeds.wait().expect(0);
    // The barrier alone would have gone on for 300 s.
    assert!(
        before.elapsed() < Duration::from_secs(100),
        "{}",
        ended.stderr
    );
    ended.assert_stderr("Error waiting on exit barrier. ");
    runs.wait().expect(1);
}

fn one_fails_after_the_other_has_succeeded(place: Place) {
    let job = place
        .node(&["--nnodes=2"], "echo started; cat go; exit 7")
        .pipe("go");
    let go = job.path("go");
    let fails = job.start();
    super::await_participants(&place.endpoint, 1, |_| true);
    let succeeds = place.node(&["--nnodes=2"], "echo done").start();
    fails.stdout.await_text("started\n", 1);
    succeeds.stdout.await_text("done\n", 1);
    assert!(!ends_within(succeeds.pid(), Duration::from_millis(500)));
    let named = format!("node 127.0.0.1_{}_0 has failed for good", fails.agent_pid());
    let before = Instant::now();
    std::fs::write(go, "").unwrap();
    fails.wait().expect(1);
    let ended = succeeds.wait().expect(1);
    let took = before.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    let last = ended.last_error_line();
    assert!(
        last.contains(&named) && last.contains("exited with code 7"),
        "{last}"
    );
    place.end();
}

#[test]
fn a_node_that_fails_for_good_stops_the_workers_of_the_others() {
    let place = store();
    let job = place
        .node(&["--nnodes=3"], "echo started; cat go; kill -SEGV $$$$")
        .pipe("go");
    let go = job.path("go");
    let fails = job.start();
    let mut others = [(), ()].map(|()| {
        place
            .node(&["--nnodes=3"], "echo started; sleep 1000")
            .start()
    });
    fails.stdout.await_text("started\n", 1);
    for other in &mut others {
        other.stdout.await_text("started\n", 1);
    }
    let named = format!("node 127.0.0.1_{}_0 has failed for good", fails.agent_pid());
    std::fs::write(go, "").unwrap();
    fails.wait().expect(1);
    for other in others {
        let ended = other.wait().expect(1);
        let last = ended.last_error_line();
        assert!(
            last.contains(&named) && last.contains("was ended by signal 11"),
            "{last}"
        );
    }
    place.end();
}

// SCN-A41
#[test]
fn a_restart_of_one_node_is_a_new_round_for_all_and_counts_for_that_one() {
    let place = first_agent();
    let flags = ["--nnodes=2", "--max-restarts=2"];
    let steady = format!("{PRINT_ROUND}; test $RDZV_ROUND = 1 || sleep 1000");
    let failing = format!("{PRINT_ROUND}; test $RDZV_ROUND = 1 || exit 3");
    let nodes = [
        place.node(&flags, &steady).start(),
        place.node(&flags, &failing).start(),
    ];
    let [steady, failing] = nodes.map(|node| node.wait().expect(0));
    for (ended, restarts) in [(&steady, "0"), (&failing, "1")] {
        assert_eq!(printed(&ended.stdout, "restarts"), restarts);
        assert_eq!(printed(&ended.stdout, "round"), "1");
        assert!(printed(&ended.stdout, "rank").ends_with("/2"));
    }
    assert_eq!(
        printed(&steady.stdout, "at"),
        printed(&failing.stdout, "at")
    );
}

#[test]
fn the_restarts_of_a_job_are_one_budget_on_any_number_of_nodes() {
    let place = store();
    let flags = ["--nnodes=4", "--max-restarts=2"];
    // In each round another node fails first; its peers fail a moment later because of it.
    let script =
        "echo round $RDZV_ROUND; test $GROUP_RANK = $((RDZV_ROUND % 4)) || sleep 0.2; exit 7";
    let nodes = [(); 4].map(|()| place.node(&flags, script).start());
    assert_eq!(last_round(nodes), 2);
    place.end();
}

/// The last round of nodes that all fail. A worker may be stopped before it has said anything, but the one
/// that fails first in a round has.
fn last_round<const NODES: usize>(nodes: [Running; NODES]) -> u32 {
    let ended = nodes.map(|node| node.wait().expect(1));
    let rounds = ended.iter().flat_map(|ended| ended.stdout.lines());
    let rounds = rounds.filter_map(|line| line.strip_prefix("round ")?.parse().ok());
    rounds.max().unwrap()
}

#[test]
fn restarts_for_failures_of_different_nodes_come_out_of_one_budget() {
    let place = store();
    let flags = ["--nnodes=3", "--max-restarts=1"];
    // Node 0 fails in round 0 and node 1 in round 1; the others never fail.
    let script = "echo round $RDZV_ROUND; test $GROUP_RANK = $RDZV_ROUND && exit 7; sleep 1000";
    let nodes = [(); 3].map(|()| place.node(&flags, script).start());
    assert_eq!(last_round(nodes), 1);
    place.end();
}

#[test]
fn a_signal_to_one_node_leaves_the_job_to_the_others() {
    let place = store();
    let flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=1"];
    let script = format!("{PRINT_ROUND}; test $GROUP_WORLD_SIZE = 1 || sleep 1000");
    let mut nodes = [(), ()].map(|()| place.node(&flags, &script).start());
    for node in &mut nodes {
        node.stdout.await_text("node", 1);
    }
    let [goes, stays] = nodes;
    goes.signal(Signal::TERM);
    goes.wait().expect(1);
    let ended = stays.wait().expect(0);
    assert_eq!(printed(&ended.stdout, "rank"), "0/1");
    assert_eq!(printed(&ended.stdout, "restarts"), "0");
    place.end();
}

#[test]
fn without_the_agent_that_hosts_the_store_the_others_end_and_say_why() {
    let place = first_agent();
    let script = "echo started; sleep 1000";
    // It could be started again there, and is waited for so long.
    let flags = ["--nnodes=2", "--rdzv-conf=coordinator_timeout=3"];
    let host = place.node(&flags, script).start();
    super::await_participants(&place.endpoint, 1, |_| true);
    let other = place
        .node(&["--nnodes=2", "--max-restarts=3"], script)
        .start();
    host.stdout.await_text("started\n", 1);
    other.stdout.await_text("started\n", 1);
    let before = Instant::now();
    kill_node(host);
    let ended = other.wait().expect(1);
    assert!(
        before.elapsed() < Duration::from_secs(40),
        "{:?}",
        before.elapsed()
    );
    let last = ended.last_error_line();
    assert!(
        last.starts_with("RendezvousConnectionError: ") && last.contains(&place.endpoint),
        "{last}"
    );
}

// SCN-A58
#[test]
fn with_static_rendezvous_a_failed_node_restarts_alone() {
    let port = crate::harness::free_port().to_string();
    let node = |rank: &str, script: &str| {
        let flags = [
            "--nnodes=2",
            "--max-restarts=1",
            "--master-port",
            &port,
            "--node-rank",
            rank,
        ];
        crate::harness::run_shell(&flags, script).start()
    };
    let steady = node("0", PRINT_ROUND);
    let failing = node(
        "1",
        &format!("{PRINT_ROUND}; test $TORCHELASTIC_RESTART_COUNT = 1"),
    );
    let failing = failing.wait().expect(0);
    let steady = steady.wait().expect(0);
    assert_eq!(steady.stdout.lines().count(), 1);
    assert_eq!(failing.stdout.lines().count(), 2);
    assert_eq!(printed(&failing.stdout, "restarts"), "1");
}

/// Two static nodes, of which one has the store.
fn two_static(scripts: [&str; 2]) -> [Running; 2] {
    let port = crate::harness::free_port().to_string();
    [0, 1].map(|rank| {
        let number = rank.to_string();
        let flags = ["--nnodes=2", "--master-port", &port, "--node-rank", &number];
        crate::harness::run_shell(&flags, scripts[rank]).start()
    })
}

#[test]
fn static_nodes_do_not_outlive_one_that_has_failed_for_good() {
    for failing in [0, 1] {
        let fails = "read go < go; exit 7";
        let hangs = "trap 'exit 0' TERM; echo up; while :; do sleep 1000 & wait $!; done";
        let port = crate::harness::free_port().to_string();
        let job = |rank: usize, script: &str| {
            let number = rank.to_string();
            let flags = ["--nnodes=2", "--master-port", &port, "--node-rank", &number];
            crate::harness::run_shell(&flags, script)
        };
        let job_that_fails = job(failing, fails).pipe("go");
        let go = job_that_fails.path("go");
        let dies = job_that_fails.start();
        let other = job(1 - failing, hangs).start();
        other.stdout.await_text("up\n", 1);
        let before = Instant::now();
        std::fs::write(go, "go\n").unwrap();
        let ended = other.wait().expect(1);
        let took = before.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}");
        let named = format!("(node rank {failing}) has failed for good");
        ended.assert_stderr(&named);
        ended.assert_stderr("code 7");
        dies.wait().expect(1);
    }
}

#[test]
fn static_nodes_do_not_outlive_one_that_was_killed() {
    for killed in [0, 1] {
        let hangs = "trap 'exit 0' TERM; echo up; while :; do sleep 1000 & wait $!; done";
        let mut nodes = two_static([hangs, hangs]).map(Some);
        for node in nodes.iter().flatten() {
            node.stdout.await_text("up\n", 1);
        }
        let [dies, other] = [killed, 1 - killed].map(|node| nodes[node].take().unwrap());
        let before = Instant::now();
        kill_node(dies);
        let ended = other.wait().expect(1);
        let took = before.elapsed();
        assert!(took < Duration::from_secs(40), "{took:?}");
        // The agent of a keeper that was killed leaves, or is gone with the store that it hosts.
        let is_named = [
            &format!("(node rank {killed}) has failed for good"),
            "the rdzv store at 127.0.0.1:",
        ]
        .map(|named| ended.stderr.contains(named));
        assert!(
            is_named[0] || killed == 0 && is_named[1],
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn a_node_rank_that_is_given_twice_is_refused_on_both_nodes() {
    let port = crate::harness::free_port().to_string();
    let nodes = ["0", "1", "1"].map(|rank| {
        let flags = ["--nnodes=3", "--master-port", &port, "--node-rank", rank];
        crate::harness::run_shell(&flags, "sleep 1000").start()
    });
    // The words of each, up to the names of both.
    let said = nodes.map(|node| {
        let ended = node.wait().expect(1);
        let said = ended
            .stderr
            .split_once("2 agents say that they are node 1 of run none: ");
        let (_, names) = said.unwrap_or_else(|| panic!("{}", ended.stderr));
        let (names, _) = names.split_once(". Give each node").unwrap();
        names.to_owned()
    });
    let (first, second) = said[0].split_once(" and ").unwrap();
    assert!(first.starts_with("127.0.0.1_") && second.starts_with("127.0.0.1_"));
    assert_ne!(first, second);
    assert!(said.iter().all(|names| *names == said[0]), "{said:?}");
}

#[test]
fn static_nodes_end_together_at_once_when_all_has_gone_well() {
    let before = Instant::now();
    for node in two_static(["exit 0", "exit 0"]) {
        let ended = node.wait().expect(0);
        assert!(!ended.stderr.contains("has failed"), "{}", ended.stderr);
    }
    let took = before.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn a_static_node_at_the_exit_barrier_hears_of_the_failure_of_another() {
    let [first, second] = two_static(["exit 0", "sleep 1; exit 7"]);
    let ended = first.wait().expect(1);
    let named = "(node rank 1) has failed for good";
    ended.assert_stderr(named);
    second.wait().expect(1);
}

#[test]
fn a_node_at_the_exit_barrier_does_not_wait_for_one_that_is_gone() {
    // The barrier stands in the store if that is not started again, else at the coordinator.
    for restarts in ["0", "3"] {
        at_the_exit_barrier(&restartable(restarts));
    }
}

fn at_the_exit_barrier(place: &Place) {
    let dies = place
        .node(&["--nnodes=2"], "echo started; sleep 1000")
        .start();
    super::await_participants(&place.endpoint, 1, |_| true);
    let job = place.node(&["--nnodes=2", "--events-file=events"], "true");
    let events = job.path("events");
    let succeeds = job.start();
    dies.stdout.await_text("started\n", 1);
    let until = Instant::now() + DEADLINE;
    while !std::fs::read_to_string(&events).is_ok_and(|events| events.contains("\"SUCCEEDED\"")) {
        assert!(Instant::now() < until);
        // The file is only appended to.
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let named = format!("127.0.0.1_{}_0", dies.agent_pid());
    let before = Instant::now();
    kill_node(dies);
    let ended = succeeds.wait().expect(0);
    let took = before.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    ended.assert_stderr(&named);
}
