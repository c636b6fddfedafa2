//! Tests that every node names the first failure of the job.

use rustix::process::Signal;
use serde_json::Value;

use super::{RendezvousPoint, await_each, await_participants, first_agent, store};
use crate::harness::{DEADLINE, Ended, Running, kill};
use crate::verdict::report;

/// Returns the root cause in the failure report: host, rank and exit code.
fn root_cause(ended: &Ended) -> String {
    let (_, root) = ended.stderr.split_once("Root Cause").expect("a report");
    let lines = root.lines().filter(|line| {
        ["host", "rank ", "exitcode"]
            .iter()
            .any(|name| line.contains(name))
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_failure_of_another_node_is_named_with_its_rank_and_cause() {
    failure_elsewhere(store());
}

#[test]
fn the_failure_of_the_node_that_hosts_the_store_is_named_too() {
    failure_elsewhere(first_agent());
}

fn failure_elsewhere(point: RendezvousPoint) {
    let flags = ["--nnodes=2", "--report=report.json", "--exit-code=worker"];
    let script = "echo 'ValueError: no more data' >&2; cat go; exit 7";
    let fails = point.node(&flags, script).pipe("go").start();
    await_participants(&point.endpoint, 1, |_| true);
    let other = point.node(&flags, "echo on; sleep 1000").start();
    other.stdout.await_text("on\n", 1);
    fails.write("go", "");
    let here = report(&fails.wait().expect(7));
    let ended = other.wait().expect(7);
    let there = report(&ended);
    let first = &there["first_failure"];
    assert_eq!(first, &here["first_failure"]);
    assert_eq!(first["exit_code"], 7);
    assert_eq!(first["cause"]["kind"], "exit_code");
    assert_eq!(first["stderr_tail"][0], "ValueError: no more data");
    assert_eq!(there["outcome"], "failed");
    let error = there["error"].as_str().unwrap();
    assert!(error.contains("has failed permanently"), "{error}");
    let line = format!(
        "rdzv: first failure of the job: rank {} (local rank 0, pid ",
        first["rank"]
    );
    ended.assert_stderr(&line);
    point.end();
}

#[test]
fn what_follows_from_a_failure_on_another_node_is_secondary() {
    let point = store();
    let flags = ["--nnodes=2", "--report=report.json"];
    // The second worker fails because the first worker failed, as workers that communicate do.
    let job = |script| point.node(&flags, script).pipe("go");
    let fails = job("echo on; cat go; echo off; exit 7").start();
    await_participants(&point.endpoint, 1, |_| true);
    let follows = job("echo on; cat go; sleep 0.2; exit 8");
    let follows = follows
        .env("TORCHELASTIC_ERROR_FILE", "launcher.json")
        .start();
    await_each([&fails, &follows], "on\n", 1);
    fails.write("go", "");
    // The second worker gets its line only after the first one has failed.
    fails.stdout.await_text("off\n", 1);
    follows.write("go", "");
    let ended = fails.wait().expect(1);
    let here = report(&ended);
    let first = root_cause(&ended);
    let ended = follows.wait().expect(1);
    let there = report(&ended);
    assert_eq!(root_cause(&ended), first, "{}", ended.stderr);
    let others = ended.stderr.split_once("Failures:").unwrap().1;
    let others = others.split_once("Root Cause").unwrap().0;
    assert!(others.contains("exitcode  : 8 (pid: "), "{}", ended.stderr);
    assert_eq!(ended.json("launcher.json")["message"]["errorCode"], 7);
    assert_eq!(here["first_failure"]["exit_code"], 7);
    assert_eq!(there["first_failure"], here["first_failure"]);
    let own = &there["failures"][1];
    assert_eq!(own["exit_code"], 8);
    assert_eq!(own["secondary"], true);
    point.end();
}

#[test]
fn a_node_that_vanishes_is_named() {
    one_goes(|node| kill(node.agent_pid(), Signal::KILL));
}

#[test]
fn a_node_whose_launcher_is_killed_is_named() {
    one_goes(|node| node.signal(Signal::KILL));
}

fn one_goes(end: impl Fn(&Running)) {
    let point = store();
    let flags = [
        "--nnodes=2",
        "--agent-restarts=0",
        "--report=report.json",
        "--rdzv-conf=join_timeout=2",
        "--exit-code=worker",
    ];
    let nodes = point.two_nodes(&flags, "echo on; sleep 1000");
    await_each(&nodes, "on\n", 1);
    let [stays, goes] = nodes;
    let name = format!("127.0.0.1_{}_0", goes.agent_pid());
    end(&goes);
    assert!(goes.all_gone_within(DEADLINE));
    let ended = stays.wait().expect(75);
    let report = report(&ended);
    let first = &report["first_failure"];
    assert_eq!(first["cause"]["kind"], "node_lost");
    assert_eq!(first["rank"], Value::Null);
    assert_eq!(first["host"], "127.0.0.1");
    assert!(first["cause"]["text"].as_str().unwrap().contains(&name));
    ended.assert_stderr("rdzv: first failure of the job: node 127.0.0.1 at ");
    let error = report["error"].as_str().unwrap();
    assert!(error.starts_with("RendezvousTimeoutError: "), "{error}");
    point.end();
}
