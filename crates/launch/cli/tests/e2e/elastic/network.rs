//! Tests of cut links, with network namespaces as machines.
//!
//! After a cut, connections stay open but carry no packets. The tests need user namespaces
//! (`unshare -rn`) and `ip`. On a machine without them, a test fails with the reason. With
//! `RDZV_TEST_NO_NAMESPACES=1`, it only reports that it tested nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdzv_testing::pids::kill;
use rustix::process::Signal;

use super::group::await_events;
use super::{Gate, PRINT_ROUND, await_each, rounds, terminated};
use crate::harness::{DEADLINE, Running, poll, poll_for, shell};

const ENDPOINT: &str = "10.9.0.1:29400";

/// Network namespace that acts as a machine.
struct Machine(Running);

impl Machine {
    /// Creates a namespace, held by a waiting process; the error is the reason.
    fn new(enter: &str) -> Result<Self, String> {
        let script =
            format!("exec {enter} sh -c 'ip link set lo up && echo up && exec sleep 1000'");
        let holder = shell(&script).start();
        if holder.says_before_it_ends("up\n") {
            Ok(Self(holder))
        } else {
            Err(holder.wait().stderr)
        }
    }

    fn enter(&self) -> String {
        format!("nsenter --preserve-credentials -U -n -t {}", self.0.pid())
    }

    /// Runs a script in the namespace.
    fn run(&self, script: &str) {
        shell(&format!("exec {} sh -ec '{script}'", self.enter())).expect(0);
    }

    /// Starts one of two agents with these flags and a shell script as worker.
    ///
    /// The script must not contain single quotes.
    fn node(&self, address: &str, flags: &str, script: &str) -> Running {
        let script = format!(
            "exec {} \"$RDZV\" run --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint {ENDPOINT} --rdzv-id job \
             --local-addr {address} {flags} --no-python sh -c '{script}'",
            self.enter()
        );
        shell(&script).start()
    }

    fn end(self) {
        self.0.signal(Signal::KILL);
        self.0.wait().expect(-9);
    }
}

/// Creates two machines with a cable between them.
fn two_machines() -> Result<(Machine, Machine), String> {
    let first = Machine::new("unshare -rn")?;
    let second = Machine::new(&format!("{} unshare -n", first.enter()))?;
    first.run(&format!(
        "ip link add cable type veth peer name cable netns {}; \
         ip addr add 10.9.0.1/24 dev cable; ip link set cable up",
        second.0.pid()
    ));
    second.run("ip addr add 10.9.0.2/24 dev cable; ip link set cable up");
    Ok((first, second))
}

/// Creates two machines; `None` if impossible and a variable accepts that.
fn machines_if_possible() -> Option<(Machine, Machine)> {
    match two_machines() {
        Ok(machines) => Some(machines),
        Err(why) if std::env::var_os("RDZV_TEST_NO_NAMESPACES").is_some() => {
            eprintln!("NOT TESTED: a cut link, because this machine has no namespaces: {why}");
            None
        }
        Err(why) => panic!("no network namespaces here: {why}"),
    }
}

/// Flags of an agent without restarts, whose loss only heartbeats show.
const BY_HEARTBEATS: &str = "--agent-restarts=0 \
    --rdzv-conf last_call_timeout=20,keep_alive_interval=1,keep_alive_max_attempt=5,read_timeout=4";

#[test]
fn a_node_that_hears_nothing_any_more_is_back_when_it_does() {
    let Some((first, second)) = machines_if_possible() else {
        return;
    };
    let script = format!("{PRINT_ROUND}; sleep 1000");
    let near = first.node("10.9.0.1", BY_HEARTBEATS, &script);
    let far = second.node("10.9.0.2", BY_HEARTBEATS, &script);
    near.stdout.await_text("rank 0/2", 1);
    far.stdout.await_text("rank 1/2", 1);

    // Packets from the second machine arrive, but packets to it do not.
    first.run("ip route add blackhole 10.9.0.2/32");
    near.stdout.await_text("rank 0/1", 1);
    // The far agent has stopped its workers, and waits for the network.
    far.stderr.await_text("treat this node as lost", 1);
    first.run("ip route del blackhole 10.9.0.2/32");
    near.stdout.await_text("rank 0/2", 2);
    far.stdout.await_text("rank 1/2", 2);
    for node in [near, far] {
        terminated(node);
    }
    second.end();
    first.end();
}

#[test]
fn a_node_behind_a_cut_link_is_missed_by_its_heartbeats() {
    let Some((first, second)) = machines_if_possible() else {
        return;
    };
    let script = format!("{PRINT_ROUND}; test $WORLD_SIZE = 1 || sleep 1000");
    let near = first.node("10.9.0.1", BY_HEARTBEATS, &script);
    let far = second.node("10.9.0.2", BY_HEARTBEATS, &script);
    near.stdout.await_text("rank 0/2", 1);
    far.stdout.await_text("rank 1/2", 1);

    second.run("ip link set cable down");
    let cut = Instant::now();
    near.stdout.await_text("rank 0/1", 1);
    let missed = cut.elapsed();
    near.wait().expect(0);
    // The node is lost 5 s (five heartbeats of 1 s) after its last heartbeat.
    assert!(
        missed > Duration::from_millis(500) && missed < Duration::from_secs(20),
        "{missed:?}"
    );
    // The other node does not hang either. The node names the endpoint that it cannot reach.
    let ended = far.wait().expect(1);
    ended.assert_last_error("RendezvousConnectionError: ", &[ENDPOINT]);
    second.end();
    first.end();
}

/// Starts an agent on each of two machines with the usual flags, in one round.
fn two_usual_nodes(machines: [&Machine; 2], gate: &Gate) -> [Running; 2] {
    let flags = "--rdzv-conf last_call_timeout=1";
    let node = |number: usize| {
        let address = format!("10.9.0.{}", number + 1);
        machines[number].node(&address, flags, &gate.script())
    };
    let nodes = [0, 1].map(node);
    await_each(&nodes, "/2 at", 1);
    nodes
}

#[test]
fn a_machine_that_acknowledges_nothing_is_missed_soon_and_its_agent_says_what_it_waits_for() {
    let Some((first, second)) = machines_if_possible() else {
        return;
    };
    let gate = Gate::new();
    let nodes = two_usual_nodes([&first, &second], &gate);
    let [near, far] = &nodes;
    second.run("ip link set cable down");
    let cut = Instant::now();
    near.stdout.await_text("/1 at", 1);
    let missed = cut.elapsed();
    far.stderr.await_text("no coordinator at", 1);
    let said = cut.elapsed();
    // With heartbeats alone, the detection would take 10 to 15 s.
    assert!(missed < Duration::from_secs(9), "{missed:?}");
    assert!(said < Duration::from_secs(12), "{said:?}");
    // After the repair of the cable, the node joins again.
    second.run("ip link set cable up");
    await_each(&nodes, "/2 at", 2);
    gate.finish(nodes);
    second.end();
    first.end();
}

#[test]
fn a_link_that_is_cut_for_a_moment_costs_nothing() {
    let Some((first, second)) = machines_if_possible() else {
        return;
    };
    let gate = Gate::new();
    let nodes = two_usual_nodes([&first, &second], &gate);
    for _ in 0..3 {
        first.run("ip link set cable down; sleep 0.8; ip link set cable up; sleep 2");
    }
    for ended in gate.finish(nodes) {
        assert_eq!(ended.stdout.matches(" at ").count(), 1, "{}", ended.stdout);
    }
    second.end();
    first.end();
}

/// Machines at one switch, which is another machine.
struct Network {
    switch: Machine,
    machines: Vec<Machine>,
}

impl Network {
    fn new(count: usize) -> Option<Self> {
        let (switch, cable) = machines_if_possible()?;
        cable.end();
        switch.run("ip link add sw0 type bridge; ip link set sw0 up");
        let machines = (1..=count).map(|number| {
            let machine = Machine::new(&format!("{} unshare -n", switch.enter())).unwrap();
            switch.run(&format!(
                "ip link add port{number} type veth peer name cable address {} netns {}; \
                 ip link set port{number} master sw0 up",
                hardware(number),
                machine.0.pid()
            ));
            machine.run(&format!(
                "ip addr add 10.9.1.{number}/24 dev cable; ip link set cable up"
            ));
            machine
        });
        let machines = machines.collect();
        Some(Self { switch, machines })
    }

    /// Starts an agent with these flags and a shell script as its worker.
    ///
    /// All machines are endpoints. The script must not contain single quotes.
    fn node(&self, number: usize, flags: &str, script: &str) -> Running {
        self.node_at(self.machines.len(), number, flags, script)
    }

    /// Starts an agent with only the first machines as endpoints.
    fn node_at(&self, endpoints: usize, number: usize, flags: &str, script: &str) -> Running {
        let command = format!("{flags} --no-python sh -c '{script}'");
        self.node_with(endpoints, number, &command)
    }

    /// Starts an agent with these flags and this command of its workers.
    fn node_with(&self, endpoints: usize, number: usize, command: &str) -> Running {
        let endpoints = (1..=endpoints).map(|number| format!("10.9.1.{number}:29400"));
        let endpoints = endpoints.collect::<Vec<_>>().join(",");
        let agent = format!(
            "exec {} \"$RDZV\" run --rdzv-backend c10d --rdzv-endpoint {endpoints} --rdzv-id job \
             --local-addr 10.9.1.{number} {command}",
            self.machines[number - 1].enter()
        );
        shell(&agent).env("LOGLEVEL", "INFO").start()
    }

    /// Cuts or repairs the cable of a machine.
    fn set_cable(&self, number: usize, state: &str) {
        self.switch
            .run(&format!("ip link set port{number} {state}"));
    }

    /// Lets packets pass only between the specified machines.
    ///
    /// Other packets are lost without an error.
    fn set_paths(&self, reaches: impl Fn(usize, usize) -> bool) {
        for (from, machine) in self.machines.iter().enumerate() {
            let others = (0..self.machines.len()).filter(|to| *to != from);
            let paths = others.map(|to| {
                // No machine has number 0.
                let at = if reaches(from, to) { to + 1 } else { 0 };
                let at = hardware(at);
                let to = to + 1;
                format!("ip neigh replace 10.9.1.{to} lladdr {at} dev cable nud permanent; ")
            });
            machine.run(&paths.collect::<String>());
        }
    }

    fn end(self) {
        self.machines.into_iter().for_each(Machine::end);
        self.switch.end();
    }
}

/// Returns the hardware address of a machine's end of its cable.
fn hardware(number: usize) -> String {
    format!("02:00:00:00:01:{number:02x}")
}

#[test]
fn a_coordinator_that_is_cut_off_from_the_other_voters_forms_no_round_and_they_do() {
    let Some(network) = Network::new(3) else {
        return;
    };
    let gate = Gate::new();
    let conf = "last_call_timeout=1,coordinator_timeout=8";
    let flags = format!("--agent-restarts=0 --nnodes 1:3 --rdzv-conf {conf}");
    let nodes = [1, 2, 3].map(|number| network.node(number, &flags, &gate.script()));
    await_each(&nodes, "/3 at", 1);
    let coordinates = |node: &Running| {
        let said = node.stderr.so_far();
        said.contains("this process coordinates the rendezvous")
    };
    let first = nodes.iter().rposition(coordinates).unwrap();
    let mut nodes = Vec::from(nodes);
    let cut_off = nodes.remove(first);
    network.set_cable(first + 1, "down");
    await_each(&nodes, "/2 at", 1);
    // The isolated agent has no majority, and exits after it has waited for a majority.
    let ended = cut_off.wait().expect(1);
    assert_eq!(ended.stdout.matches("rank ").count(), 1, "{}", ended.stdout);
    ended.assert_stderr("knows no coordinator");
    gate.finish(nodes);
    network.end();
}

#[test]
fn an_agent_that_is_killed_is_the_voter_of_its_machine_again() {
    let Some(network) = Network::new(3) else {
        return;
    };
    let gate = Gate::new();
    // The sockets listen on all addresses, so they do not show which endpoint is the agent's.
    let nodes = [1, 2, 3].map(|number| network.node(number, "--nnodes 3", &gate.script()));
    await_each(&nodes, "round 0\n", 1);
    // Without new voters at the endpoints of two of three voters, there would be no majority.
    for (round, killed) in [(1, 2), (2, 1)] {
        kill(nodes[killed].agent_pid(), Signal::KILL);
        for (number, node) in nodes.iter().enumerate() {
            if number != killed {
                let text = format!(
                    "the process at 10.9.1.{}:29400 replaces the voter",
                    killed + 1
                );
                node.stderr.await_text(&text, 1);
            }
            node.stdout.await_text(&format!("round {round}\n"), 1);
        }
    }
    gate.finish(nodes);
    network.end();
}

/// Returns the rounds and times in nanoseconds that a worker wrote to its file.
fn stamps(file: &Path) -> Vec<(u64, u128)> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(round, at)| (round.parse().unwrap(), at.parse().unwrap()))
        .collect()
}

/// Returns the times of a worker in one round.
fn stamps_in(file: &Path, round: u64) -> Vec<u128> {
    let own = stamps(file).into_iter().filter(|(of, _)| *of == round);
    own.map(|(_, at)| at).collect()
}

/// Waits for the first time of a worker in a round, and returns it.
fn first_stamp(file: &Path, round: u64) -> u128 {
    // The worker prints its round before it writes to the file, so the test polls.
    poll(|| {
        let stamps = stamps_in(file, round);
        stamps
            .first()
            .copied()
            .ok_or("no worker writes in this round")
    })
}

/// Returns the nanoseconds since the epoch.
fn now() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_nanos()
}

/// Returns a worker that prints its round, then logs it with times.
///
/// It writes round and time to a file until the gate is open.
fn stamping(gate: &Gate, file: &Path) -> String {
    let write = format!(
        "echo $RDZV_ROUND $(date +%s%N) >> {}; sleep 0.02",
        file.display()
    );
    format!("{PRINT_ROUND}; {}", gate.while_closed(&write))
}

/// Returns the flags of a node that writes its events to this file.
fn with_events(file: &Path) -> String {
    let file = file.display();
    format!("--nnodes 2:3 --rdzv-conf last_call_timeout=1 --events-file {file}")
}

#[test]
fn workers_of_a_node_that_is_cut_off_are_suspended_before_the_others_go_on_without_it() {
    cut_nodes_off(3);
}

#[test]
fn workers_of_a_node_that_is_cut_off_are_suspended_with_one_endpoint_too() {
    cut_nodes_off(1);
}

/// Isolates each of three nodes in turn.
fn cut_nodes_off(endpoints: usize) {
    let Some(network) = Network::new(3) else {
        return;
    };
    let gate = Gate::new();
    let file = |number: usize| gate.path(&format!("stamps{number}"));
    let events = |number: usize| gate.path(&format!("events{number}"));
    let start = |number| {
        let (flags, script) = (with_events(&events(number)), stamping(&gate, &file(number)));
        network.node_at(endpoints, number, &flags, &script)
    };
    let mut nodes = vec![start(1)];
    // With one endpoint, the first agent hosts the store.
    nodes[0]
        .stderr
        .await_text("TCP store", 2 - endpoints.min(2));
    nodes.extend([2, 3].map(start));
    await_each(&nodes, "/3 at", 1);
    // The cuts alternate between another node and the coordinator.
    let mut last_round = 0;
    for cut in 0..rounds() {
        let of_coordinator = cut % 2 == 1;
        let term = |node: &Running| {
            let said = node.stderr.so_far();
            let at = said.rfind("this process coordinates the rendezvous")?;
            let (_, term) = said[at..].split_once("(term ")?;
            term.split(')').next()?.parse::<u64>().ok()
        };
        let coordinator = (0..3).max_by_key(|node| term(&nodes[*node])).unwrap();
        let cut_off = if of_coordinator {
            coordinator
        } else {
            (coordinator + 1) % 3
        };
        let others = [(cut_off + 1) % 3, (cut_off + 2) % 3];
        let round = |node: usize| {
            let said = nodes[node].stdout.so_far();
            let (_, round) = said.rsplit_once("round ").unwrap();
            round.trim().parse::<u64>().unwrap()
        };
        let before = round(cut_off);
        assert!(before > last_round || last_round == 0);
        for number in 1..=3 {
            await_fence(&events(number));
        }
        let suspended = count_events(&events(cut_off + 1), "fenced");
        let cut_at = now();
        network.set_cable(cut_off + 1, "down");
        let seen = others.map(|node| nodes[node].stdout.so_far().matches("/2 at").count());
        for (node, seen) in others.into_iter().zip(seen) {
            nodes[node].stdout.await_text("/2 at", seen + 1);
        }
        await_events(&events(cut_off + 1), "fenced", suspended + 1);
        let after = round(others[0]);
        let last = *stamps_in(&file(cut_off + 1), before).last().unwrap();
        for node in others {
            let first = first_stamp(&file(node + 1), after);
            assert!(
                last < first,
                "round {before} ran {} ms after round {after} had begun",
                (last - first) / 1_000_000
            );
        }
        // The lease was renewed before the cut, and the signal takes some time.
        let stood = last.saturating_sub(cut_at);
        assert!(stood < 4_000_000_000, "{} ms", stood / 1_000_000);
        let next = others.map(|node| first_stamp(&file(node + 1), after) - cut_at);
        eprintln!(
            "suspended after {} ms, the next round after {:?} ms",
            stood / 1_000_000,
            next.map(|it| it / 1_000_000)
        );
        let seen = [0, 1, 2].map(|node| nodes[node].stdout.so_far().matches("/3 at").count());
        network.set_cable(cut_off + 1, "up");
        for (node, seen) in nodes.iter().zip(seen) {
            node.stdout.await_text("/3 at", seen + 1);
        }
        last_round = after;
        // The suspended workers were killed without running again.
        let again = stamps_in(&file(cut_off + 1), before);
        assert_eq!(again.last(), Some(&last));
    }
    for ended in gate.finish(nodes) {
        ended.assert_stdout("restarts 0");
    }
    network.end();
}

#[test]
fn the_fork_server_of_a_node_that_was_cut_off_forks_its_next_workers() {
    let Some(network) = Network::new(3) else {
        return;
    };
    let gate = Gate::new();
    let events = |number: usize| gate.path(&format!("events{number}"));
    let program = gate.path("worker.py");
    let script = format!(
        "import os\nos.execvp('sh', ['sh', '-c', {:?}])\n",
        gate.script()
    );
    fs::write(&program, script).unwrap();
    let nodes = [1, 2, 3].map(|number| {
        let flags = with_events(&events(number));
        if number == 3 {
            let program = program.display();
            let command = format!("{flags} --preload json {program}");
            return network.node_with(1, number, &command);
        }
        network.node_at(1, number, &flags, &gate.script())
    });
    await_each(&nodes, "/3 at", 1);
    nodes[2]
        .stderr
        .await_text("the fork server has imported", 1);
    (1..=3).for_each(|number| await_fence(&events(number)));
    network.set_cable(3, "down");
    await_each(&nodes[..2], "/2 at", 1);
    await_events(&events(3), "fenced", 1);
    network.set_cable(3, "up");
    await_each(&nodes, "/3 at", 2);
    for (number, ended) in (1..).zip(gate.finish(nodes)) {
        let is_off = ended.stderr.contains("--preload has no effect");
        assert!(!is_off, "node {number}: {}", ended.stderr);
    }
    network.end();
}

#[test]
fn a_cut_of_two_seconds_costs_no_round() {
    let Some(network) = Network::new(3) else {
        return;
    };
    let gate = Gate::new();
    let events = |number: usize| gate.path(&format!("events{number}"));
    let nodes = [1, 2, 3].map(|number| {
        let flags = with_events(&events(number));
        network.node_at(1, number, &flags, &gate.script())
    });
    await_each(&nodes, "/3 at", 1);
    for number in [2, 1] {
        for file in [1, 2, 3].map(events) {
            await_fence(&file);
        }
        network.set_cable(number, "down");
        // The test needs a cut of exactly this duration.
        std::thread::park_timeout(Duration::from_secs(2));
        network.set_cable(number, "up");
    }
    // After this time, the job would have noticed a lost node.
    std::thread::park_timeout(Duration::from_secs(4));
    for ended in gate.finish(nodes) {
        assert_eq!(ended.stdout.matches(" at ").count(), 1, "{}", ended.stdout);
    }
    network.end();
}

/// Waits until the last fence event of a node is `fence_on`.
fn await_fence(file: &Path) {
    let is_on = || count_events(file, "fence_on") > count_events(file, "fence_off");
    poll_for("the fence is on", is_on);
}

/// Returns the number of events with this name in a file.
fn count_events(file: &Path, name: &str) -> usize {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.matches(&format!("\"{name}\"")).count()
}

/// Name of a partition of five machines, and its function.
///
/// The function returns `true` if the first position reaches the second one.
type Cut = (&'static str, fn(usize, usize) -> bool);

const CUTS: [Cut; 6] = [
    ("parts of 2 and 3", |from, to| (from < 2) == (to < 2)),
    ("chain", |from, to| from.abs_diff(to) == 1),
    ("hub", |from, to| from == 0 || to == 0),
    ("one-way, from one machine to all", |from, _| from != 0),
    ("one-way, from one machine to another", |from, to| {
        (from, to) != (0, 1)
    }),
    ("no majority", |from, to| from / 2 == to / 2),
];

/// Waits until one of the sets of machines runs in one round for `time`.
///
/// Only workers of these machines may run. Returns the number of machines and the round.
fn await_steady(files: &[PathBuf], sets: &[BTreeSet<usize>], time: Duration) -> (usize, u64) {
    let deadline = Instant::now() + DEADLINE;
    let mut since: Option<(Instant, BTreeSet<usize>, BTreeSet<u64>)> = None;
    loop {
        let (mut machines, mut rounds) = (BTreeSet::new(), BTreeSet::new());
        for (machine, file) in files.iter().enumerate() {
            // A worker writes every 20 ms, but less often on busy processors.
            let recent = |at: &u128| now() - at < 1_000_000_000;
            if let Some((round, _)) = stamps(file).last().filter(|(_, at)| recent(at)) {
                machines.insert(machine);
                rounds.insert(*round);
            }
        }
        let is_one = sets.contains(&machines) && rounds.len() <= 1;
        since = match since {
            Some(same) if is_one && same.1 == machines && same.2 == rounds => Some(same),
            _ if is_one => Some((Instant::now(), machines, rounds)),
            _ => None,
        };
        if let Some((begin, machines, rounds)) = &since
            && begin.elapsed() > time
        {
            return (machines.len(), rounds.first().copied().unwrap_or(0));
        }
        assert!(
            Instant::now() < deadline,
            "{since:?} is not one of {sets:?}"
        );
        // There is no event for a file that stops growing, so the test polls.
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

#[test]
fn five_voters_go_on_with_all_that_one_of_them_reaches_however_they_are_cut_off() {
    let Some(network) = Network::new(5) else {
        return;
    };
    let gate = Gate::new();
    let files = [0, 1, 2, 3, 4].map(|number| gate.path(&format!("stamps{number}")));
    let flags = "--nnodes 3:5 --rdzv-conf last_call_timeout=1";
    let start = |number: usize| network.node(number + 1, flags, &stamping(&gate, &files[number]));
    let nodes = [0, 1, 2, 3, 4].map(start);
    let all = [(0..5).collect()];
    // After this time, all voters exist again.
    let whole = || await_steady(&files, &all, Duration::from_millis(1_500)).1;
    let mut round = whole();
    for cut in 0..2 * rounds() {
        let (name, reaches) = CUTS[cut % CUTS.len()];
        let position = |machine: usize| (machine + cut) % 5;
        let reaches = |from, to| reaches(position(from), position(to));
        let reached = |from| -> BTreeSet<usize> {
            let both_ways = |to: &usize| *to == from || reaches(from, *to) && reaches(*to, from);
            (0..5).filter(both_ways).collect()
        };
        let reached = (0..5).map(reached).filter(|others| others.len() >= 3);
        let mut reached: Vec<_> = reached.collect();
        if reached.is_empty() {
            reached.push(BTreeSet::new());
        }
        network.set_paths(reaches);
        // The time is longer than the detection of a lost machine.
        let (left, next) = await_steady(&files, &reached, Duration::from_secs(4));
        let is_lost = (1..5).contains(&left);
        assert!(next > round || !is_lost, "{name}, {left} machines");
        network.set_paths(|_, _| true);
        let healed = whole();
        // Without a decision on a new round, the workers continue.
        assert!(healed > next || !is_lost, "{name}, {left} machines");
        assert!(healed == round || left > 0, "{name}");
        round = healed;
    }
    for ended in gate.finish(nodes) {
        ended.assert_stdout("restarts 0");
    }
    let mut times = BTreeMap::new();
    for (round, at) in files.iter().flat_map(|file| stamps(file)) {
        let (first, last) = times.entry(round).or_insert((at, at));
        (*first, *last) = (at.min(*first), at.max(*last));
    }
    let pairs = times.values().zip(times.values().skip(1));
    let overlaps = pairs.filter(|((_, last), (first, _))| last >= first);
    assert_eq!(overlaps.count(), 0, "{times:?}");
    network.end();
}
