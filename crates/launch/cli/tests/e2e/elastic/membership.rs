//! Tests of nodes that join, leave, die, or are surplus.

use std::time::{Duration, Instant};

use rdzv_store::{ServerOptions, TcpStoreServer};
use rustix::process::Signal;

use super::{
    PRINT_ROUND, RendezvousPoint, await_participants, expect_killed, first_agent, kill_node,
    printed, store, terminated,
};
use crate::harness::{Running, ends_within, kill, rdzv};

/// Flags for one to three nodes, with a last call long enough to notice.
const ELASTIC: [&str; 2] = ["--nnodes=1:3", "--rdzv-conf=last_call_timeout=20"];

/// Waits for a round of `size` workers, and returns their master endpoint.
fn await_world(node: &Running, size: usize, times: usize) -> String {
    node.stdout.await_text(&format!("/{size} at "), times);
    printed(&node.stdout.so_far(), "at")
}

// SCN-A42 and SCN-A43: the address of the new node sorts after or before those of the others.
#[test]
fn a_late_node_joins_a_running_job() {
    for late_address in ["127.0.0.3", "127.0.0.1"] {
        let point = store();
        let flags = [
            "--nnodes=1:2",
            "--rdzv-conf=last_call_timeout=1",
            "--log-dir=logs",
            "-t=1",
        ];
        let script = format!("{PRINT_ROUND}; test $WORLD_SIZE = 2 || sleep 1000");
        let at = |address: &str| point.node(&flags, &script).env("PET_LOCAL_ADDR", address);
        let first = at("127.0.0.2").start();
        await_world(&first, 1, 1);
        let before = Instant::now();
        let second = at(late_address).start();
        await_world(&first, 2, 1);
        await_world(&second, 2, 1);
        let took = before.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
        let (first, second) = (first.wait().expect(0), second.wait().expect(0));
        assert_eq!(printed(&first.stdout, "at"), printed(&second.stdout, "at"));
        assert_eq!(printed(&first.stdout, "restarts"), "0");
        assert_eq!(printed(&first.stdout, "round"), "1");
        // The logs of the first round still exist.
        let kept: Vec<String> = first
            .files_below("logs")
            .iter()
            .map(|path| path.iter().skip(1).collect::<std::path::PathBuf>())
            .map(|path| path.display().to_string())
            .collect();
        assert_eq!(
            kept,
            ["attempt_0/0/stdout.log", "attempt_0.r1/0/stdout.log"]
        );
        point.end();
    }
}

// SCN-A47
#[test]
fn a_surplus_node_waits_and_ends_well_with_the_job() {
    let point = store();
    let node = |script| point.node(&["--nnodes=2"], script).pipe("go").start();
    let (first, second) = (node("echo started; cat go"), node("echo started"));
    super::await_each([&first, &second], "started\n", 1);
    let surplus = node("exit 9");
    super::await_state(&point.endpoint, |state| state.redundancy_list.len() == 1);
    first.write("go", "");
    first.wait().expect(0);
    second.wait().expect(0);
    let ended = surplus.wait().expect(0);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    ended.assert_stderr("has ended without needing this node");
    point.end();
}

#[test]
fn a_surplus_node_replaces_one_that_leaves() {
    let point = store();
    let flags = ["--nnodes=2", "--rdzv-conf=last_call_timeout=1"];
    let script = format!("{PRINT_ROUND}; test $RDZV_ROUND -ge 1 || sleep 1000");
    let nodes = point.two_nodes(&flags, &script);
    for node in &nodes {
        await_world(node, 2, 1);
    }
    let spare = point.node(&flags, &script).start();
    super::await_state(&point.endpoint, |state| state.redundancy_list.len() == 1);
    let [goes, stays] = nodes;
    terminated(goes).expect(1);
    await_world(&stays, 2, 2);
    await_world(&spare, 2, 1);
    stays.wait().expect(0);
    spare.wait().expect(0);
    point.end();
}

/// Kills one of three agents ten times; the killed agent hosts nothing.
///
/// The other agents continue without it, and then a new agent joins.
fn killed_ten_times(kill: impl Fn(&Running)) {
    let point = first_agent();
    let script = format!("{PRINT_ROUND}; sleep 1000");
    let flags = [&ELASTIC[..], &["--agent-restarts=0"]].concat();
    let node = || point.node(&flags, &script).start();
    let host = node();
    await_participants(&point.endpoint, 1, |_| true);
    let (stays, mut goes) = (node(), node());
    let mut worst = Duration::ZERO;
    for times in 1..=10 {
        let others = [&host, &stays];
        super::await_each(others, "/3 at ", times);
        await_world(&goes, 3, 1);
        let before = Instant::now();
        kill(&goes);
        let masters = others.map(|node| await_world(node, 2, times));
        worst = worst.max(before.elapsed());
        assert_eq!(masters[0], masters[1]);
        expect_killed(goes);
        goes = node();
    }
    // The last call of 20 s applies only to a first round.
    assert!(worst < Duration::from_secs(10), "{worst:?}");
    await_world(&goes, 3, 1);
    for node in [goes, stays, host] {
        assert!(!ends_within(node.pid(), Duration::ZERO));
        assert_eq!(printed(&node.stdout.so_far(), "restarts"), "0");
    }
}

#[test]
fn a_killed_agent_is_missed_at_once_and_replaced_ten_times_in_a_row() {
    killed_ten_times(|node| kill(node.agent_pid(), Signal::KILL));
}

#[test]
fn an_agent_whose_launcher_is_killed_is_missed_at_once_and_replaced_ten_times_in_a_row() {
    killed_ten_times(|node| node.signal(Signal::KILL));
}

/// A bare store does not notice an agent's exit, so the keeper reports it.
///
/// PyTorch's store is such a store, and so is one of rdzv without the native rendezvous.
#[test]
fn a_killed_agent_is_taken_out_of_a_bare_store_by_its_keeper() {
    let server = TcpStoreServer::start(ServerOptions {
        host: Some("127.0.0.1".to_owned()),
        ..ServerOptions::default()
    });
    let server = server.unwrap();
    let point = RendezvousPoint {
        endpoint: server.local_addr().to_string(),
        store: None,
    };
    let flags = [
        "--nnodes=1:2",
        "--rdzv-conf=last_call_timeout=20",
        "--agent-restarts=0",
    ];
    let script = format!("{PRINT_ROUND}; test $WORLD_SIZE = 1 || exec sleep 1000");
    let first = point.node(&flags, &script).start();
    let second = point.node(&flags, &script);
    let second = second.env("PET_LOCAL_ADDR", "127.0.0.2").start();
    await_world(&first, 2, 1);
    await_world(&second, 2, 1);
    let before = Instant::now();
    kill(second.agent_pid(), Signal::KILL);
    await_world(&first, 1, 1);
    // By its heartbeats alone, the agent would be lost after 15 s.
    let elapsed = before.elapsed();
    assert!(elapsed < Duration::from_secs(14), "{elapsed:?}");
    first.wait().expect(0);
    second.wait().expect(-9);
}

/// Neither job has a run id, so the second job could join the first job's run.
#[test]
fn a_job_without_a_run_id_takes_in_no_node_of_another_job() {
    let point = store();
    let job = |flags: &[&str], command: &[&str]| {
        let meet = ["run", "--rdzv-backend=c10d", "--rdzv-endpoint"];
        let job = rdzv(meet).args([&*point.endpoint]).args(flags);
        job.args(["--no-python"]).args(command).start()
    };
    let elastic = ["--nnodes=1:3", "--rdzv-conf=last_call_timeout=0"];
    let script = format!("{PRINT_ROUND}; sleep 1000");
    let first = job(&elastic, &["sh", "-c", &script]);
    first.stdout.await_text("rank 0/1", 1);
    // The first job accepts more nodes, but not a node with another program.
    for flags in [&elastic[..], &["--nnodes=1"]] {
        let refused = job(flags, &["true"]).wait().expect(1);
        refused.assert_last_error("", &["'true'", "'sh'", "--rdzv-id"]);
    }
    // A node of the same job can still join.
    let second = job(&elastic, &["sh", "-c", &script]);
    second.stdout.await_text("/2 node", 1);
    assert_eq!(printed(&second.stdout.so_far(), "round"), "1");
    kill_node(second);
    kill_node(first);
    point.end();
}
