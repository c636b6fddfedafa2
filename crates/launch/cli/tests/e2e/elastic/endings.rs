//! Tests of how a node's exit ends the other nodes.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{
    PRINT_ROUND, RendezvousPoint, await_each, first_agent, kill_node, printed, store, store_with,
    terminated,
};
use crate::harness::{Job, Running, ends_within, free_port, kill, poll_for, rdzv, run_shell};

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

// The store holds the exit barrier. After the loss of the store, this node cannot learn that the
// other nodes have succeeded.
#[test]
fn a_node_that_has_succeeded_does_not_wait_for_others_at_a_store_that_is_lost() {
    let point = store_with(&["--coordinator-timeout", "1"]);
    let [runs, succeeds] = one_runs_while_the_other_has_succeeded(&point, "cat go");
    let line =
        "the workers of this node have succeeded; waiting for the workers of the other nodes";
    succeeds.stderr.await_text(line, 1);
    for (pid, _) in point.store.as_ref().unwrap().processes() {
        kill(pid, Signal::KILL);
    }
    let before = Instant::now();
    let ended = succeeds.wait().expect(0);
    // The barrier alone would have waited without a limit.
    assert!(
        before.elapsed() < Duration::from_secs(100),
        "{}",
        ended.stderr
    );
    ended.assert_stderr("Error waiting on exit barrier. ");
    runs.wait().expect(1);
}

/// Starts two nodes: the first runs a script, and the second has succeeded.
fn one_runs_while_the_other_has_succeeded(point: &RendezvousPoint, runs: &str) -> [Running; 2] {
    let script = format!("echo started; {runs}");
    let runs = point.node(&["--nnodes=2"], &script).pipe("go").start();
    super::await_participants(&point.endpoint, 1, |_| true);
    let succeeds = point.node(&["--nnodes=2"], "echo done").start();
    runs.stdout.await_text("started\n", 1);
    succeeds.stdout.await_text("done\n", 1);
    [runs, succeeds]
}

fn one_fails_after_the_other_has_succeeded(point: RendezvousPoint) {
    let [fails, succeeds] = one_runs_while_the_other_has_succeeded(&point, "cat go; exit 7");
    assert!(!ends_within(succeeds.pid(), Duration::from_millis(500)));
    let named = format!(
        "node 127.0.0.1_{}_0 has failed permanently",
        fails.agent_pid()
    );
    let before = Instant::now();
    fails.write("go", "");
    fails.wait().expect(1);
    let ended = succeeds.wait().expect(1);
    let took = before.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    ended.assert_last_error("", &[&named, "exited with code 7"]);
    point.end();
}

#[test]
fn a_node_that_fails_for_good_stops_the_workers_of_the_others() {
    let point = store();
    let node = |script: &str| point.node(&["--nnodes=3"], script).pipe("go").start();
    let fails = node("echo started; cat go; kill -SEGV $$$$");
    let others = [(), ()].map(|()| node("echo started; sleep 1000"));
    await_each([&fails, &others[0], &others[1]], "started\n", 1);
    let named = format!(
        "node 127.0.0.1_{}_0 has failed permanently",
        fails.agent_pid()
    );
    fails.write("go", "");
    fails.wait().expect(1);
    for other in others {
        let ended = other.wait().expect(1);
        ended.assert_last_error("", &[&named, "was killed by signal 11"]);
    }
    point.end();
}

// SCN-A41
#[test]
fn a_restart_of_one_node_is_a_new_round_for_all_and_counts_for_that_one() {
    let point = first_agent();
    let flags = ["--nnodes=2", "--max-restarts=2"];
    let steady = format!("{PRINT_ROUND}; test $RDZV_ROUND = 1 || sleep 1000");
    let failing = format!("{PRINT_ROUND}; test $RDZV_ROUND = 1 || exit 3");
    let nodes = [
        point.node(&flags, &steady).start(),
        point.node(&flags, &failing).start(),
    ];
    let [steady, failing] = nodes.map(|node| node.wait().expect(0));
    for (ended, restarts) in [(&steady, "0"), (&failing, "1")] {
        assert_eq!(printed(&ended.stdout, "restarts"), restarts);
        assert_eq!(printed(&ended.stdout, "round"), "1");
        assert!(printed(&ended.stdout, "rank").ends_with("/2"));
    }
    let [first, second] = [&steady, &failing].map(|ended| printed(&ended.stdout, "at"));
    assert_eq!(first, second);
}

#[test]
fn the_restarts_of_a_job_are_one_budget_on_any_number_of_nodes() {
    let point = store();
    let flags = ["--nnodes=4", "--max-restarts=2"];
    // In each round, another node fails first, and its peers fail shortly after.
    let script =
        "echo round $RDZV_ROUND; test $GROUP_RANK = $((RDZV_ROUND % 4)) || sleep 0.2; exit 7";
    let nodes = [(); 4].map(|()| point.node(&flags, script).start());
    assert_eq!(last_round(nodes), 2);
    point.end();
}

/// Returns the last round of nodes that all fail.
///
/// A worker may be stopped before it prints its round, but the first failed worker has printed its
/// round.
fn last_round<const NODES: usize>(nodes: [Running; NODES]) -> u32 {
    let ended = nodes.map(|node| node.wait().expect(1));
    let rounds = ended.iter().flat_map(|ended| ended.stdout.lines());
    let rounds = rounds.filter_map(|line| line.strip_prefix("round ")?.parse().ok());
    rounds.max().unwrap()
}

#[test]
fn restarts_for_failures_of_different_nodes_come_out_of_one_budget() {
    let point = store();
    let flags = ["--nnodes=3", "--max-restarts=1"];
    // Node 0 fails in round 0 and node 1 in round 1. The other node never fails.
    let script = "echo round $RDZV_ROUND; test $GROUP_RANK = $RDZV_ROUND && exit 7; sleep 1000";
    let nodes = [(); 3].map(|()| point.node(&flags, script).start());
    assert_eq!(last_round(nodes), 1);
    point.end();
}

#[test]
fn a_signal_to_one_node_leaves_the_job_to_the_others() {
    let point = store();
    let flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=1"];
    let script = format!("{PRINT_ROUND}; test $GROUP_WORLD_SIZE = 1 || sleep 1000");
    let nodes = point.two_nodes(&flags, &script);
    await_each(&nodes, "node", 1);
    let [goes, stays] = nodes;
    terminated(goes).expect(1);
    let ended = stays.wait().expect(0);
    assert_eq!(printed(&ended.stdout, "rank"), "0/1");
    assert_eq!(printed(&ended.stdout, "restarts"), "0");
    point.end();
}

#[test]
fn without_the_agent_that_hosts_the_store_the_others_end_and_say_why() {
    let point = first_agent();
    let script = "echo started; sleep 1000";
    // The host could restart at its endpoint, so the other node waits for the host.
    let flags = ["--nnodes=2", "--rdzv-conf=coordinator_timeout=3"];
    let host = point.node(&flags, script).start();
    super::await_participants(&point.endpoint, 1, |_| true);
    let other = point
        .node(&["--nnodes=2", "--max-restarts=3"], script)
        .start();
    await_each([&host, &other], "started\n", 1);
    let before = Instant::now();
    kill_node(host);
    let ended = other.wait().expect(1);
    let took = before.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?}");
    ended.assert_last_error("RendezvousConnectionError: ", &[&point.endpoint]);
}

// SCN-A58
#[test]
fn with_static_rendezvous_a_failed_node_restarts_alone() {
    let fails = format!("{PRINT_ROUND}; test $TORCHELASTIC_RESTART_COUNT = 1");
    let jobs = static_jobs([PRINT_ROUND, &fails]);
    let nodes = jobs.map(|job| job.env("PET_MAX_RESTARTS", "1").start());
    let [steady, failing] = nodes.map(|node| node.wait().expect(0));
    assert_eq!(steady.stdout.lines().count(), 1);
    assert_eq!(failing.stdout.lines().count(), 2);
    assert_eq!(printed(&failing.stdout, "restarts"), "1");
}

/// Starts two static nodes; the first one hosts the store.
fn two_static(scripts: [&str; 2]) -> [Running; 2] {
    static_jobs(scripts).map(Job::start)
}

/// Returns the jobs of two static nodes.
fn static_jobs(scripts: [&str; 2]) -> [Job; 2] {
    let port = free_port().to_string();
    [0, 1].map(|rank| {
        let number = rank.to_string();
        let flags = ["--nnodes=2", "--master-port", &port, "--node-rank", &number];
        run_shell(&flags, scripts[rank])
    })
}

/// Script of a worker that runs until SIGTERM.
const HANGS: &str = "trap 'exit 0' TERM; echo up; while :; do sleep 1000 & wait $!; done";

#[test]
fn static_nodes_do_not_outlive_one_that_has_failed_for_good() {
    for failing in [0, 1] {
        let mut scripts = [HANGS; 2];
        scripts[failing] = "read go < go; exit 7";
        let mut nodes = static_jobs(scripts).map(|job| Some(job.pipe("go").start()));
        let [dies, other] = [failing, 1 - failing].map(|node| nodes[node].take().unwrap());
        other.stdout.await_text("up\n", 1);
        let before = Instant::now();
        dies.write("go", "go\n");
        let ended = other.wait().expect(1);
        let took = before.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}");
        let named = format!("(node rank {failing}) has failed permanently");
        ended.assert_stderr(&named);
        ended.assert_stderr("code 7");
        dies.wait().expect(1);
    }
}

#[test]
fn static_nodes_do_not_outlive_one_that_was_killed() {
    for killed in [0, 1] {
        let mut nodes = two_static([HANGS; 2]).map(Some);
        await_each(nodes.iter().flatten(), "up\n", 1);
        let [dies, other] = [killed, 1 - killed].map(|node| nodes[node].take().unwrap());
        let before = Instant::now();
        kill_node(dies);
        let ended = other.wait().expect(1);
        let took = before.elapsed();
        assert!(took < Duration::from_secs(40), "{took:?}");
        // After its keeper is killed, an agent leaves in order, or is lost with the store that it
        // hosts.
        let is_named = [
            &format!("(node rank {killed}) has failed permanently"),
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
    let port = free_port().to_string();
    let nodes = ["0", "1", "1"].map(|rank| {
        let flags = ["--nnodes=3", "--master-port", &port, "--node-rank", rank];
        run_shell(&flags, "sleep 1000").start()
    });
    // The text of each node, which contains the names of both.
    let said = nodes.map(|node| {
        let ended = node.wait().expect(1);
        let said = ended
            .stderr
            .split_once("two agents of run none have node rank 1: ");
        let (_, names) = said.unwrap_or_else(|| panic!("{}", ended.stderr));
        let (names, _) = names.split_once("; give each node").unwrap();
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
    let named = "(node rank 1) has failed permanently";
    ended.assert_stderr(named);
    second.wait().expect(1);
}

#[test]
fn a_node_at_the_exit_barrier_does_not_wait_for_one_that_is_gone() {
    // Without restarts, the barrier is in the store; with restarts, at the coordinator.
    for restarts in ["0", "3"] {
        at_the_exit_barrier(&store_with(&["--restarts", restarts]));
    }
}

fn at_the_exit_barrier(point: &RendezvousPoint) {
    let dies = point
        .node(&["--nnodes=2"], "echo started; sleep 1000")
        .start();
    super::await_participants(&point.endpoint, 1, |_| true);
    let job = point.node(&["--nnodes=2", "--events-file=events"], "true");
    let succeeds = job.start();
    dies.stdout.await_text("started\n", 1);
    poll_for("the success of one node", || {
        let events = std::fs::read_to_string(succeeds.path("events"));
        events.is_ok_and(|events| events.contains("\"SUCCEEDED\""))
    });
    let named = format!("127.0.0.1_{}_0", dies.agent_pid());
    let before = Instant::now();
    kill_node(dies);
    let ended = succeeds.wait().expect(0);
    let took = before.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    ended.assert_stderr(&named);
}

/// Worker of two ranks: rank 0 succeeds, rank 1 fails in the first round.
const FAILS_LATE: &str = "echo round $RDZV_ROUND; test $RANK = 0 && exit; sleep 0.5; \
     test $RDZV_ROUND -ge 1 || exit 7";

#[test]
fn a_node_at_the_exit_barrier_starts_again_with_one_that_restarts() {
    // With restarts of the store, the barrier is at the coordinator; without, in the store.
    let stores = ["0", "3"].map(|restarts| store_with(&["--restarts", restarts]));
    for site in stores.into_iter().chain([first_agent()]) {
        let nodes = site.two_nodes(&["--nnodes=2", "--max-restarts=1"], FAILS_LATE);
        for node in nodes {
            let ended = node.wait().expect(0);
            assert_eq!(ended.stdout.matches("round").count(), 2, "{}", ended.stdout);
        }
        site.end();
    }
}

#[test]
fn a_node_that_joins_at_the_end_restarts_also_the_nodes_at_the_exit_barrier() {
    let site = store();
    let script = "echo round $RDZV_ROUND of $WORLD_SIZE; test $RANK = 0 && exit; \
                  test $WORLD_SIZE = 3 || sleep 1000";
    let flags = [
        "--nnodes=2:3",
        "--rdzv-conf=last_call_timeout=2",
        "--events-file=events",
    ];
    let nodes = site.two_nodes(&flags, script);
    poll_for("the success of one node", || {
        let succeeded = |node: &Running| {
            let events = std::fs::read_to_string(node.path("events"));
            events.is_ok_and(|events| events.contains("\"SUCCEEDED\""))
        };
        nodes.iter().any(succeeded)
    });
    let third = site.node(&flags, script).start();
    for node in nodes.into_iter().chain([third]) {
        node.wait().expect(0).assert_stdout(" of 3");
    }
    site.end();
}

#[test]
fn a_wait_at_the_exit_barrier_has_a_limit_if_one_is_set() {
    let site = store();
    let flags = ["--nnodes=2", "--exit-barrier-timeout=1.5"];
    let script = "test $RANK = 0 && exit; echo runs; until read go < go; do :; done";
    let [first, second] = [(), ()].map(|()| site.node(&flags, script).pipe("go").start());
    let limit = "the workers of other nodes did not exit within 1.5 s (--exit-barrier-timeout)";
    poll_for("the end of the wait", || {
        [&first, &second]
            .iter()
            .any(|node| node.stderr.so_far().contains(limit))
    });
    let [ends, runs] = if first.stderr.so_far().contains(limit) {
        [first, second]
    } else {
        [second, first]
    };
    ends.wait().expect(0);
    runs.write("go", "go\n");
    runs.wait().expect(0);
    site.end();
}

#[test]
fn a_signal_to_a_node_at_the_exit_barrier_ends_no_other_node() {
    // The store is restartable or not, or the first agent hosts it and another node takes over from
    // that agent.
    for site in [store(), store_with(&["--restarts", "0"]), first_agent()] {
        let script = "test $RANK = 0 && exit; echo runs; until read go < go; do :; done";
        let flags = ["--nnodes=2", "--max-restarts=1", "--events-file=events"];
        let first = site.node(&flags, script).pipe("go").start();
        super::await_participants(&site.endpoint, 1, |_| true);
        let second = site.node(&flags, script).pipe("go").start();
        let line =
            "the workers of this node have succeeded; waiting for the workers of the other nodes";
        poll_for("the success of one node", || {
            [&first, &second]
                .iter()
                .any(|node| node.stderr.so_far().contains(line))
        });
        let [waits, runs] = if first.stderr.so_far().contains(line) {
            [first, second]
        } else {
            [second, first]
        };
        runs.stdout.await_text("runs\n", 1);
        terminated(waits);
        runs.write("go", "go\n");
        let ended = runs.wait().expect(0);
        assert_eq!(ended.stdout, "runs\n");
        site.end();
    }
}

#[test]
fn a_signal_to_a_static_node_at_the_exit_barrier_ends_no_other_node() {
    let runs = "echo runs; while ! test -e go; do sleep 0.05; done";
    let [first, second] = two_static([runs, "exit 0"]);
    let line =
        "the workers of this node have succeeded; waiting for the workers of the other nodes";
    second.stderr.await_text(line, 1);
    terminated(second);
    first.write("go", "");
    let ended = first.wait().expect(0);
    assert_eq!(ended.stdout, "runs\n");
}

#[test]
fn a_newcomer_that_cannot_start_its_workers_leaves_and_the_others_go_on() {
    let site = store();
    let gate = super::Gate::new();
    let flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=1"];
    let first = site.node(&flags, &gate.script()).start();
    first.stdout.await_text("/1 at ", 1);
    let endpoint = [
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-endpoint",
        &site.endpoint,
    ];
    let newcomer = rdzv(["run"]).args(endpoint).args(flags);
    let newcomer = newcomer.args(["--no-python", "no-such-program"]);
    let ended = newcomer.env("PET_LOCAL_ADDR", "127.0.0.1").expect(1);
    ended.assert_stderr("no-such-program");
    first.stdout.await_text("/1 at ", 2);
    // No restart was left.
    let ended = gate.finish_without_failures([first]);
    assert_eq!(printed(&ended[0].stdout, "rank"), "0/1");
    site.end();
}
