//! The first failure of the job is named on every node.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use super::{Place, await_participants, first_agent, store};
use crate::harness::{DEADLINE, Ended, Running, kill};

fn report(ended: &Ended) -> Value {
    let text = fs::read_to_string(ended.directory.path().join("report.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The root cause in the failure report: its rank and process.
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

fn failure_elsewhere(place: Place) {
    let flags = ["--nnodes=2", "--report=report.json", "--exit-code=worker"];
    let job = place
        .node(
            &flags,
            "echo 'ValueError: no more data' >&2; cat go; exit 7",
        )
        .pipe("go");
    let go = job.path("go");
    let fails = job.start();
    await_participants(&place.endpoint, 1, |_| true);
    let other = place.node(&flags, "echo on; sleep 1000").start();
    other.stdout.await_text("on\n", 1);
    fs::write(go, "").unwrap();
    let here = report(&fails.wait().expect(7));
    let ended = other.wait().expect(7);
    let there = report(&ended);
    let first = &there["first_failure"];
    assert_eq!(first, &here["first_failure"]);
    assert_eq!(
        (&first["exit_code"], &first["cause"]["kind"]),
        (&7.into(), &"exit_code".into())
    );
    assert_eq!(first["stderr_tail"][0], "ValueError: no more data");
    assert_eq!(there["outcome"], "failed");
    assert!(
        there["error"]
            .as_str()
            .unwrap()
            .contains("has failed for good")
    );
    let line = format!(
        "rdzv: first failure of the job: rank {} (local rank 0, pid ",
        first["rank"]
    );
    ended.assert_stderr(&line);
    place.end();
}

#[test]
fn what_follows_from_a_failure_on_another_node_is_secondary() {
    let place = store();
    let flags = ["--nnodes=2", "--report=report.json"];
    // The second one fails when it hears of the first, as workers that talk to one another do.
    let job = place
        .node(&flags, "echo on; cat go; echo off; exit 7")
        .pipe("go");
    let go = job.path("go");
    let fails = job.start();
    await_participants(&place.endpoint, 1, |_| true);
    let job = place
        .node(&flags, "echo on; cat go; sleep 0.2; exit 8")
        .pipe("go")
        .env("TORCHELASTIC_ERROR_FILE", "launcher.json");
    let other_go = job.path("go");
    let follows = job.start();
    fails.stdout.await_text("on\n", 1);
    follows.stdout.await_text("on\n", 1);
    fs::write(go, "").unwrap();
    // The agent of the second one hears of it a second later.
    fails.stdout.await_text("off\n", 1);
    fs::write(other_go, "").unwrap();
    let ended = fails.wait().expect(1);
    let here = report(&ended);
    let first = root_cause(&ended);
    let ended = follows.wait().expect(1);
    let there = report(&ended);
    assert_eq!(root_cause(&ended), first, "{}", ended.stderr);
    let others = ended.stderr.split_once("Failures:").unwrap().1;
    let others = others.split_once("Root Cause").unwrap().0;
    assert!(others.contains("exitcode  : 8 (pid: "), "{}", ended.stderr);
    let launcher = ended.directory.path().join("launcher.json");
    let launcher = fs::read_to_string(launcher).unwrap();
    let launcher: Value = serde_json::from_str(&launcher).unwrap();
    assert_eq!(launcher["message"]["errorCode"], 7);
    assert_eq!(here["first_failure"]["exit_code"], 7);
    assert_eq!(there["first_failure"], here["first_failure"]);
    let own = &there["failures"][1];
    assert_eq!(
        (&own["exit_code"], &own["secondary"]),
        (&8.into(), &true.into())
    );
    place.end();
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
    let place = store();
    let flags = [
        "--nnodes=2",
        "--agent-restarts=0",
        "--report=report.json",
        "--rdzv-conf=join_timeout=2",
        "--exit-code=worker",
    ];
    let stays = place.node(&flags, "echo on; sleep 1000").start();
    let goes = place.node(&flags, "echo on; sleep 1000").start();
    stays.stdout.await_text("on\n", 1);
    goes.stdout.await_text("on\n", 1);
    let name = format!("127.0.0.1_{}_0", goes.agent_pid());
    end(&goes);
    assert!(goes.all_gone_within(DEADLINE));
    let ended = stays.wait().expect(75);
    let report = report(&ended);
    let first = &report["first_failure"];
    assert_eq!(
        (&first["cause"]["kind"], &first["rank"]),
        (&"node_lost".into(), &Value::Null)
    );
    assert_eq!(first["host"], "127.0.0.1");
    assert!(first["cause"]["text"].as_str().unwrap().contains(&name));
    ended.assert_stderr("rdzv: first failure of the job: node 127.0.0.1 at ");
    assert!(
        report["error"]
            .as_str()
            .unwrap()
            .starts_with("RendezvousTimeoutError: ")
    );
    place.end();
}
