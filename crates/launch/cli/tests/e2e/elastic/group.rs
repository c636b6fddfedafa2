//! Tests of the coordinator's group in status pages, metrics and events.

use rdzv_testing::{Process, binary, pids, program};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::restarts::{kill_service, service};
use super::voters::{CONF, coordinator, kill_machine, start, voter_endpoints};
use super::{Gate, await_each, first_agent, rounds, terminated};
use crate::harness::{Running, poll, poll_for, rdzv};
use crate::observe::server::{get, logged_port};

/// Polls the status until the group satisfies a condition; returns the group.
fn await_group(port: u16, wanted: impl Fn(&Value) -> bool) -> Value {
    poll(|| {
        let (code, text) = get(port, "/status");
        assert_eq!(code, 200);
        let status: Value = serde_json::from_str(&text).unwrap();
        let group = status["group"].clone();
        if wanted(&group) { Ok(group) } else { Err(text) }
    })
}

/// Returns the states of the voters at these endpoints.
fn states<'a>(group: &'a Value, endpoints: &[&str]) -> Vec<&'a str> {
    let voters = group["voters"].as_array().unwrap();
    let state = |endpoint: &&str| {
        let mut voters = voters.iter();
        let voter = voters.find(|voter| voter["address"] == *endpoint);
        voter.map_or("absent", |voter| voter["state"].as_str().unwrap())
    };
    endpoints.iter().map(state).collect()
}

/// Waits for `count` events with this name in a file, and returns them.
pub(super) fn await_events(file: &Path, name: &str, count: usize) -> Vec<Value> {
    poll(|| {
        let text = fs::read_to_string(file).unwrap_or_default();
        // The last line may be incomplete.
        let events = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let events: Vec<Value> = events
            .filter(|event: &Value| event["name"] == name)
            .collect();
        if events.len() >= count {
            Ok(events)
        } else {
            Err(text)
        }
    })
}

/// Returns the value of a metric without special labels.
fn metric(port: u16, name: &str) -> String {
    let (code, text) = get(port, "/metrics");
    assert_eq!(code, 200);
    let mut lines = text.lines();
    let line = lines.find(|line| {
        line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} "))
    });
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn every_voter_names_the_coordinator_and_the_state_of_each_and_the_next_one_after_its_death() {
    let point = voter_endpoints(3);
    let endpoints: Vec<&str> = point.endpoint.split(',').collect();
    let gate = Gate::new();
    let file = |node: usize| gate.path(&format!("events{node}"));
    let mut nodes = Vec::from([0, 1, 2].map(|node| {
        let events = format!("--events-file={}", file(node).display());
        let flags = ["--nnodes=2:3", "--status-addr=0", "--rdzv-conf", CONF];
        start(&point, &gate, &[&flags[..], &[&events]].concat())
    }));
    await_each(&nodes, "/3 at", 1);
    let ports = nodes.iter().map(|node| logged_port(node, "status"));
    let mut ports: Vec<u16> = ports.collect();
    let dead = coordinator(&nodes);
    let mut seen = Vec::new();
    for (node, port) in ports.iter().enumerate() {
        let group = await_group(*port, |group| {
            let states = states(group, &endpoints);
            let leaders = states.iter().filter(|state| **state == "leader");
            let followers = states.iter().filter(|state| **state == "follower");
            (leaders.count(), followers.count()) == (1, 2)
        });
        let role = if node == dead { "coordinator" } else { "voter" };
        assert_eq!(group["role"], role, "{group}");
        assert_eq!(group["target"], 3);
        assert_eq!(group["waiting"], Value::Null);
        assert_eq!(group["fenced"], false);
        assert_eq!(group["epoch"], group["term"]);
        seen.push(["coordinator", "cluster", "term"].map(|name| group[name].clone()));
        assert_eq!(metric(*port, "rdzv_group_voters"), "3");
        assert_eq!(metric(*port, "rdzv_group_target_voters"), "3");
        assert_ne!(metric(*port, "rdzv_group_elections_total"), "0");
        assert_eq!(metric(*port, "rdzv_group_takeovers_total"), "0");
        assert_eq!(metric(*port, "rdzv_group_term"), group["term"].to_string());
        let voters = await_events(&file(node), "voters_changed", 1);
        assert_eq!(voters[0]["fields"]["voters"].as_array().unwrap().len(), 3);
    }
    assert!(seen.iter().all(|of| *of == seen[0]), "{seen:?}");
    let [before, cluster, term] = seen.remove(0);
    kill_machine(nodes.remove(dead));
    ports.remove(dead);
    await_each(&nodes, "/2 at", 1);
    let mut now = Vec::new();
    for port in &ports {
        // A voter may learn of the new coordinator before it knows that the other one is dead.
        let group = await_group(*port, |group| {
            let of_dead = states(group, &[before.as_str().unwrap()]);
            let mut states = states(group, &endpoints);
            states.retain(|state| ["leader", "follower"].contains(state));
            !group["coordinator"].is_null()
                && group["coordinator"] != before
                && of_dead != ["leader"]
                && of_dead != ["follower"]
                && states.len() == 2
        });
        assert_eq!(group["cluster"], cluster);
        assert!(group["term"].as_u64() > term.as_u64(), "{group}");
        assert_eq!(metric(*port, "rdzv_group_voters"), "2");
        assert_ne!(metric(*port, "rdzv_reattach_seconds_count"), "0");
        now.push(group["coordinator"].clone());
    }
    assert_eq!(now[0], now[1]);
    let others: Vec<usize> = (0..3).filter(|node| *node != dead).collect();
    for node in &others {
        let changed = await_events(&file(*node), "coordinator_changed", 2);
        assert_eq!(changed[0]["fields"]["before"], Value::Null);
        let fields = &changed.last().unwrap()["fields"];
        assert_eq!(fields["coordinator"], now[0]);
        assert_ne!(fields["before"], Value::Null);
        let reattached = await_events(&file(*node), "reattached", 1);
        assert_eq!(reattached.last().unwrap()["fields"]["coordinator"], now[0]);
    }
    // The new coordinator reports that it knows the round.
    let says = poll(|| {
        let mut said = nodes.iter().map(|node| node.stderr.so_far());
        let says = said
            .position(|said| said.contains("this process coordinates the rendezvous in place of"));
        says.ok_or("no process coordinates the rendezvous")
    });
    let recovered = await_events(&file(others[says]), "recovered", 1);
    assert_eq!(recovered[0]["fields"]["nodes"], 3);
    gate.finish(nodes);
}

#[test]
fn an_agent_whose_only_coordinator_is_gone_says_for_what_it_waits() {
    // An agent that can become a voter receives the state from the coordinator.
    for (conf, members) in [("voters=1", 1), ("voters=3", 2)] {
        let point = first_agent();
        let gate = Gate::new();
        let flags = ["--nnodes=2", "--status-addr=0", "--rdzv-conf", conf];
        let host = start(&point, &gate, &flags);
        host.stderr.await_text("hosts the TCP store", 1);
        let port = logged_port(&host, "status");
        let group = await_group(port, |group| group["waiting"]["case"] == "W8");
        assert_eq!(group["role"], "coordinator");
        assert_eq!(group["target"], 1);
        assert_eq!(states(&group, &[&point.endpoint]), ["leader"]);
        let other = start(&point, &gate, &flags);
        other.stdout.await_text("/2 at", 1);
        await_group(port, |group| {
            group["voters"].as_array().unwrap().len() == members
        });
        let port = logged_port(&other, "status");
        let group = await_group(port, |group| {
            let voters = group["voters"].as_array().map_or(0, Vec::len);
            group["coordinator"] == *point.endpoint && voters == if members == 1 { 0 } else { 2 }
        });
        let role = if members == 1 { "agent" } else { "learner" };
        assert_eq!(group["role"], role);
        assert_eq!(group["waiting"], Value::Null);
        assert!(group["cluster"].is_string(), "{group}");
        // The keeper is killed too, and the agent has no time to hand over its role.
        kill_machine(host);
        let group = await_group(port, |group| group["waiting"]["case"] == "W1");
        let waiting = &group["waiting"];
        assert_eq!(waiting["missing"], serde_json::json!([point.endpoint]));
        let sentence = waiting["sentence"].as_str().unwrap();
        for part in ["[job] no coordinator at", "the workers continue"] {
            assert!(sentence.contains(part), "{sentence}");
        }
        terminated(other);
    }
}

/// Starts a store with a status page, and returns the port of the page.
fn store(flags: &[&str]) -> (Running, u16) {
    let store = rdzv(["store", "--status-addr=0"]).args(flags);
    let store = store.env("LOGLEVEL", "INFO").start();
    store.stdout.await_text("listening on ", 1);
    let port = logged_port(&store, "status");
    (store, port)
}

#[test]
fn a_store_serves_the_status_of_its_group_and_does_so_when_it_was_started_again() {
    let (running, port) = store(&["--host", "127.0.0.1", "--port", "0"]);
    let group = await_group(port, |group| !group.is_null());
    assert_eq!(group["role"], "coordinator");
    assert!(
        group["fenced"].is_null() && group["waiting"].is_null(),
        "{group}"
    );
    assert_eq!(get(port, "/"), (200, "store server: alive\n".to_owned()));
    assert_eq!(metric(port, "rdzv_group_voters"), "1");
    kill_service(&running);
    let again = await_group(port, |group| !group.is_null());
    assert_eq!(again["coordinator"], group["coordinator"]);
    terminated(running).expect(0);
}

#[test]
fn a_voter_that_is_alone_says_who_is_missing_and_a_page_that_cannot_be_served_is_one_sentence() {
    let point = voter_endpoints(3);
    let endpoints: Vec<&str> = point.endpoint.split(',').collect();
    let (running, port) = store(&["--join", &point.endpoint]);
    let group = await_group(port, |group| group["waiting"]["case"] == "W5");
    assert_eq!(
        group["waiting"]["missing"],
        serde_json::json!(endpoints[1..])
    );
    assert_eq!(group["role"], Value::Null);
    let taken = format!("--status-addr={port}");
    let ended = rdzv(["store", "--port=0", &taken]).expect(1);
    let expected = format!("rdzv store: --status-addr 127.0.0.1:{port}: Address already in use");
    ended.assert_stderr(&expected);
    rdzv(["store", "--status-addr=node"]).expect(2);
    terminated(running).expect(0);
}

#[test]
fn a_node_without_a_majority_says_that_its_workers_stand_still() {
    let (point, gate) = (voter_endpoints(3), Gate::new());
    let events = gate.path("events");
    let conf = "last_call_timeout=1,join_timeout=60,node_timeout=0.8";
    let file = format!("--events-file={}", events.display());
    // Suspended workers make no progress, but rdzv must not report a hang.
    let flags = [
        "--nnodes=2:3",
        "--rdzv-conf",
        conf,
        "--hang-timeout=1",
        "--status-addr=0",
        &file,
    ];
    let first = start(&point, &gate, &flags);
    let others = [1, 2].map(|_| start(&point, &gate, &flags[..3]));
    first.stdout.await_text("/3 at", 1);
    let port = logged_port(&first, "status");
    let group = await_group(port, |group| group["lease_left_s"].as_f64() > Some(0.0));
    assert_eq!(group["fenced"], false, "{group}");
    let agents = others.each_ref().map(Running::agent_pid);
    for agent in agents {
        pids::kill(agent, Signal::STOP);
    }
    let group = await_group(port, |group| group["fenced"] == true);
    assert_eq!(group["lease_left_s"], 0.0, "{group}");
    await_events(&events, "fenced", 1);
    await_group(port, |group| group["waiting"]["case"] == "W5");
    for agent in agents {
        pids::kill(agent, Signal::CONT);
    }
    let over = await_events(&events, "unfenced", 1);
    let stood = over[0]["fields"]["seconds"].as_f64().unwrap();
    await_group(port, |group| {
        group["fenced"] == false && group["waiting"].is_null()
    });
    let counted: f64 = metric(port, "rdzv_fenced_seconds_total").parse().unwrap();
    assert!(counted >= stood && stood > 0.0, "{counted} {stood}");
    gate.finish([first].into_iter().chain(others));
}

/// Waits until the record contains many more answers to agents.
fn await_answers(record: &Path) {
    let answers = || {
        let text = fs::read_to_string(record).unwrap_or_default();
        text.matches(" left").count() + text.matches(" status ").count()
    };
    let before = answers();
    poll_for("answers to agents", || answers() >= before + 100);
}

/// Agents join, leave, close and succeed in many runs while voters die.
///
/// The answers must be linearizable (INV-L1). The test sends SIGSTOP to no voter. An agent keeps
/// its connection to a stopped voter, so the record does not show that the other voters may treat
/// that agent as lost.
#[test]
fn answers_to_agents_while_voters_are_killed_are_linearizable() {
    let point = voter_endpoints(5);
    let endpoints: Vec<&str> = point.endpoint.split(',').collect();
    let flags = ["--join", &point.endpoint, "--restarts=1000000"];
    let stores = [0, 1, 2, 3, 4].map(|_| store(&flags));
    // All stores vote, so a majority is left without any one store. Returns the leader.
    let leader = || {
        let is_leader = |(_, port): &(Running, u16)| {
            let group = await_group(*port, |group| {
                let is_there = group["voters"].is_array();
                let mut states = is_there.then(|| states(group, &endpoints));
                states.iter_mut().for_each(|states| states.sort_unstable());
                states.is_some_and(|states| states[..4] == ["follower"; 4] && states[4] == "leader")
            });
            group["role"] == "coordinator"
        };
        let leaders: Vec<bool> = stores.iter().map(is_leader).collect();
        leaders.iter().position(|is_leader| *is_leader)
    };
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let mut crowd = Command::new(program("crowd"));
    crowd.args(["record", &point.endpoint]).arg(&record);
    crowd.args(["100", "6"]).stdin(Stdio::piped());
    let mut crowd = Process::start(&mut crowd);
    for round in 0..rounds() {
        await_answers(&record);
        let leader = leader().unwrap_or_default();
        let victim = (leader + usize::from(round % 3 == 1)) % 5;
        let service = service(&stores[victim].0, 0);
        pids::kill(service, Signal::KILL);
    }
    await_answers(&record);
    crowd.close_stdin();
    assert!(crowd.wait().success());
    let mut checker = Command::new(binary("rdzv-sim"));
    let checked = checker.arg("history").arg(&record).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    for (store, _) in stores {
        terminated(store).expect(0);
    }
}
