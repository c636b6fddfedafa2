//! A link that is cut, so that no connection says anything any more: two network namespaces with a
//! cable between them.
//!
//! Needs user namespaces (`unshare -rn`) and `ip`. Where a machine does not allow them the test fails
//! and says why; `RDZV_TEST_NO_NAMESPACES=1` accepts that, and says so.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdzv_testing::pids::kill;
use rustix::process::Signal;

use super::PRINT_ROUND;
use crate::harness::{DEADLINE, Job, Running, shell};

const ENDPOINT: &str = "10.9.0.1:29400";

/// One of the two machines.
struct Machine(Running);

impl Machine {
    /// A namespace of its own, held by a process that waits; or why that cannot be.
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

    /// Runs a script in there.
    fn run(&self, script: &str) {
        shell(&format!("exec {} sh -ec '{script}'", self.enter()))
            .run()
            .expect(0);
    }

    /// An agent with a shell script, without single quotes, as its worker.
    fn node(&self, address: &str, script: &str) -> Job {
        let conf =
            "last_call_timeout=20,keep_alive_interval=1,keep_alive_max_attempt=5,read_timeout=4";
        let script = format!(
            "exec {} \"$RDZV\" run --agent-restarts=0 --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint {ENDPOINT} \
             --rdzv-id job --local-addr {address} --rdzv-conf {conf} --no-python sh -c '{script}'",
            self.enter()
        );
        shell(&script)
    }

    fn end(self) {
        self.0.signal(Signal::KILL);
        self.0.wait().expect(-9);
    }
}

/// Two machines with a cable between them.
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

/// The two machines; none where this machine allows none and that was accepted.
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

#[test]
fn a_node_that_hears_nothing_any_more_is_back_when_it_does() {
    let Some((first, second)) = machines_if_possible() else {
        return;
    };
    let script = format!("{PRINT_ROUND}; sleep 1000");
    let near = first.node("10.9.0.1", &script).start();
    let far = second.node("10.9.0.2", &script).start();
    near.stdout.await_text("rank 0/2", 1);
    far.stdout.await_text("rank 1/2", 1);

    // Packets of the second machine come through, packets to it do not.
    first.run("ip route add blackhole 10.9.0.2/32");
    near.stdout.await_text("rank 0/1", 1);
    // Its agent has stopped the workers, and waits for the network.
    far.stderr.await_text("hold this node for lost", 1);
    first.run("ip route del blackhole 10.9.0.2/32");
    near.stdout.await_text("rank 0/2", 2);
    far.stdout.await_text("rank 1/2", 2);
    for node in [near, far] {
        node.signal(Signal::TERM);
        node.wait();
    }
    second.end();
    first.end();
}

#[test]
fn a_node_behind_a_cut_link_is_missed_by_its_heartbeats() {
    let Some((first, second)) = machines_if_possible() else {
        return;
    };
    let near = first
        .node(
            "10.9.0.1",
            &format!("{PRINT_ROUND}; test $WORLD_SIZE = 1 || sleep 1000"),
        )
        .start();
    let far = second
        .node("10.9.0.2", &format!("{PRINT_ROUND}; sleep 1000"))
        .start();
    near.stdout.await_text("rank 0/2", 1);
    far.stdout.await_text("rank 1/2", 1);

    second.run("ip link set cable down");
    let cut = Instant::now();
    near.stdout.await_text("rank 0/1", 1);
    let missed = cut.elapsed();
    near.wait().expect(0);
    // Two heartbeats of one second each, and what is left of the one before.
    assert!(
        missed > Duration::from_millis(500) && missed < Duration::from_secs(20),
        "{missed:?}"
    );
    // Nor does the other one hang: it names what it cannot reach.
    let ended = far.wait().expect(1);
    let last = ended.last_error_line();
    assert!(
        last.starts_with("RendezvousConnectionError: ") && last.contains(ENDPOINT),
        "{last}"
    );
    second.end();
    first.end();
}

/// An agent of this machine that is started again if it is killed, with the options that everybody has.
fn usual_node(machine: &Machine, address: &str, script: &str) -> Running {
    let script = format!(
        "exec {} \"$RDZV\" run --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint {ENDPOINT} --rdzv-id job \
         --local-addr {address} --rdzv-conf last_call_timeout=1 --no-python sh -c '{script}'",
        machine.enter()
    );
    shell(&script).start()
}

#[test]
fn a_machine_that_acknowledges_nothing_is_missed_soon_and_its_agent_says_what_it_waits_for() {
    let Some((first, second)) = machines_if_possible() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let script = format!(
        "{PRINT_ROUND}; until test -e {}; do sleep 0.05; done",
        go.display()
    );
    let near = usual_node(&first, "10.9.0.1", &script);
    let far = usual_node(&second, "10.9.0.2", &script);
    near.stdout.await_text("/2 at", 1);
    far.stdout.await_text("/2 at", 1);
    second.run("ip link set cable down");
    let cut = Instant::now();
    near.stdout.await_text("/1 at", 1);
    let missed = cut.elapsed();
    far.stderr
        .await_text("no coordinator at the rdzv store at 10.9.0.1", 1);
    let said = cut.elapsed();
    // By its heartbeats alone it would be 10 to 15 s.
    assert!(missed < Duration::from_secs(9), "{missed:?}");
    assert!(said < Duration::from_secs(12), "{said:?}");
    // The cable of a machine that is back brings its node back.
    second.run("ip link set cable up");
    near.stdout.await_text("/2 at", 2);
    far.stdout.await_text("/2 at", 2);
    fs::write(&go, "").unwrap();
    near.wait().expect(0);
    far.wait().expect(0);
    second.end();
    first.end();
}

#[test]
fn a_link_that_is_cut_for_a_moment_costs_nothing() {
    let Some((first, second)) = machines_if_possible() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let script = format!(
        "{PRINT_ROUND}; until test -e {}; do sleep 0.05; done",
        go.display()
    );
    let near = usual_node(&first, "10.9.0.1", &script);
    let far = usual_node(&second, "10.9.0.2", &script);
    near.stdout.await_text("/2 at", 1);
    far.stdout.await_text("/2 at", 1);
    for _ in 0..3 {
        first.run("ip link set cable down; sleep 0.8; ip link set cable up; sleep 2");
    }
    fs::write(&go, "").unwrap();
    for node in [near, far] {
        let ended = node.wait().expect(0);
        assert_eq!(ended.stdout.matches(" at ").count(), 1, "{}", ended.stdout);
    }
    second.end();
    first.end();
}

/// Three machines at one switch, which is in the first one's hands.
fn three_machines() -> Option<(Machine, [Machine; 3])> {
    let (switch, cable) = machines_if_possible()?;
    cable.end();
    switch.run("ip link add sw0 type bridge; ip link set sw0 up");
    let machines = [1, 2, 3].map(|number| {
        let machine = Machine::new(&format!("{} unshare -n", switch.enter())).unwrap();
        switch.run(&format!(
            "ip link add port{number} type veth peer name cable netns {}; \
             ip link set port{number} master sw0 up",
            machine.0.pid()
        ));
        machine.run(&format!(
            "ip addr add 10.9.1.{number}/24 dev cable; ip link set cable up"
        ));
        machine
    });
    Some((switch, machines))
}

#[test]
fn a_coordinator_that_is_cut_off_from_the_other_voters_forms_no_round_and_they_do() {
    let Some((switch, machines)) = three_machines() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let script = format!(
        "{PRINT_ROUND}; until test -e {}; do sleep 0.05; done",
        go.display()
    );
    let endpoints = "10.9.1.1:29400,10.9.1.2,10.9.1.3";
    let conf = "last_call_timeout=1,coordinator_timeout=8";
    let start = |number: usize| {
        let agent = format!(
            "exec {} \"$RDZV\" run --agent-restarts=0 --nnodes 1:3 --rdzv-backend c10d --rdzv-endpoint {endpoints} \
             --rdzv-id job --local-addr 10.9.1.{number} --rdzv-conf {conf} --no-python sh -c '{script}'",
            machines[number - 1].enter()
        );
        shell(&agent).env("LOGLEVEL", "INFO").start()
    };
    let mut nodes = Vec::from([1, 2, 3].map(|number| (number, start(number))));
    for (_, node) in &nodes {
        node.stdout.await_text("/3 at", 1);
    }
    let coordinates = |node: &Running| {
        let said = node.stderr.so_far();
        said.contains("this process coordinates the rendezvous")
    };
    let first = nodes.iter().rposition(|(_, node)| coordinates(node));
    let (number, cut_off) = nodes.remove(first.unwrap());
    switch.run(&format!("ip link set port{number} down"));
    for (_, node) in &nodes {
        node.stdout.await_text("/2 at", 1);
    }
    // It has no majority, and ends when it has waited for one.
    let ended = cut_off.wait().expect(1);
    assert_eq!(ended.stdout.matches("rank ").count(), 1, "{}", ended.stdout);
    assert!(
        ended.stderr.contains("knows no coordinator"),
        "{}",
        ended.stderr
    );
    fs::write(&go, "").unwrap();
    for (_, node) in nodes {
        node.wait().expect(0);
    }
    machines.into_iter().for_each(Machine::end);
    switch.end();
}

#[test]
fn an_agent_that_is_killed_has_the_place_of_its_machine_again() {
    let Some((switch, machines)) = three_machines() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let script = format!(
        "{PRINT_ROUND}; until test -e {}; do sleep 0.05; done",
        go.display()
    );
    let nodes = [1, 2, 3].map(|number| {
        // Its sockets are for all addresses, so they do not say which of the places it has.
        let agent = format!(
            "exec {} \"$RDZV\" run --nnodes 3 --rdzv-backend c10d --rdzv-endpoint 10.9.1.1:29400,10.9.1.2,10.9.1.3 \
             --rdzv-id job --local-addr 10.9.1.{number} --no-python sh -c '{script}'",
            machines[number - 1].enter()
        );
        shell(&agent).env("LOGLEVEL", "INFO").start()
    });
    for node in &nodes {
        node.stdout.await_text("round 0\n", 1);
    }
    // Without the places of two of three, nobody would decide any more.
    for (round, killed) in [(1, 2), (2, 1)] {
        kill(nodes[killed].agent_pid(), Signal::KILL);
        for (number, node) in nodes.iter().enumerate() {
            if number != killed {
                let text = format!("the process at 10.9.1.{}:29400 votes in place", killed + 1);
                node.stderr.await_text(&text, 1);
            }
            node.stdout.await_text(&format!("round {round}\n"), 1);
        }
    }
    fs::write(&go, "").unwrap();
    for node in nodes {
        node.wait().expect(0);
    }
    machines.into_iter().for_each(Machine::end);
    switch.end();
}

/// The times, in nanoseconds, at which a worker ran in a round, as it has written them down itself.
fn stamps(file: &Path, round: &str) -> Vec<u128> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let own = lines.filter(|(of, _)| *of == round);
    own.map(|(_, at)| at.parse().unwrap()).collect()
}

/// The first of them, once there is one.
fn first_stamp(file: &Path, round: &str) -> u128 {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(first) = stamps(file, round).first() {
            return *first;
        }
        assert!(Instant::now() < until, "no worker writes in round {round}");
        // The worker says which round it is in before it writes.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn workers_of_a_node_that_is_cut_off_stand_still_before_the_others_go_on_without_it() {
    let Some((switch, machines)) = three_machines() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let endpoints = "10.9.1.1:29400,10.9.1.2,10.9.1.3";
    let file = |number: usize| directory.path().join(format!("stamps{number}"));
    let start = |number: usize| {
        let script = format!(
            "{PRINT_ROUND}; until test -e {}; do echo $RDZV_ROUND $(date +%s%N) >> {}; sleep 0.02; done",
            go.display(),
            file(number).display()
        );
        let agent = format!(
            "exec {} \"$RDZV\" run --agent-restarts=0 --nnodes 2:3 --rdzv-backend c10d --rdzv-endpoint {endpoints} \
             --rdzv-id job --local-addr 10.9.1.{number} --rdzv-conf last_call_timeout=1,fence=auto \
             --no-python sh -c '{script}'",
            machines[number - 1].enter()
        );
        shell(&agent).env("LOGLEVEL", "INFO").start()
    };
    let nodes = [1, 2, 3].map(start);
    for node in &nodes {
        node.stdout.await_text("/3 at", 1);
    }
    // First one that is not the coordinator, then the one that is.
    let mut last_round = 0;
    for of_coordinator in [false, true] {
        let term = |node: &Running| {
            let said = node.stderr.so_far();
            let at = said.rfind("this process coordinates the rendezvous")?;
            let (_, term) = said[at..].split_once("(term ")?;
            term.split(')').next()?.parse::<u64>().ok()
        };
        let coordinator = (0..3).max_by_key(|node| term(&nodes[*node])).unwrap();
        let cut_off = match of_coordinator {
            true => coordinator,
            false => (coordinator + 1) % 3,
        };
        let others = [(cut_off + 1) % 3, (cut_off + 2) % 3];
        let round = |node: usize| {
            let said = nodes[node].stdout.so_far();
            let (_, round) = said.rsplit_once("round ").unwrap();
            round.trim().parse::<u64>().unwrap()
        };
        let before = round(cut_off);
        assert!(before > last_round || last_round == 0);
        let stood = nodes[cut_off].stderr.so_far();
        let stood = stood.matches("workers stand still").count();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        switch.run(&format!("ip link set port{} down", cut_off + 1));
        let seen = others.map(|node| nodes[node].stdout.so_far().matches("/2 at").count());
        for (node, seen) in others.into_iter().zip(seen) {
            nodes[node].stdout.await_text("/2 at", seen + 1);
        }
        let still = "workers stand still";
        nodes[cut_off].stderr.await_text(still, stood + 1);
        let after = round(others[0]);
        let last = stamps(&file(cut_off + 1), &before.to_string());
        let last = *last.last().unwrap();
        for node in others {
            let first = first_stamp(&file(node + 1), &after.to_string());
            assert!(
                last < first,
                "round {before} ran {} ms after round {after} had begun",
                (last - first) / 1_000_000
            );
        }
        // The lease was renewed before the cut, and a signal takes a moment.
        let stood = last.saturating_sub(now.as_nanos());
        assert!(stood < 4_000_000_000, "{} ms", stood / 1_000_000);
        let seen = [0, 1, 2].map(|node| nodes[node].stdout.so_far().matches("/3 at").count());
        switch.run(&format!("ip link set port{} up", cut_off + 1));
        for (node, seen) in nodes.iter().zip(seen) {
            node.stdout.await_text("/3 at", seen + 1);
        }
        last_round = after;
        // They were killed where they stood.
        let again = stamps(&file(cut_off + 1), &before.to_string());
        assert_eq!(again.last(), Some(&last));
    }
    fs::write(&go, "").unwrap();
    for node in nodes {
        let ended = node.wait().expect(0);
        assert!(ended.stdout.contains("restarts 0"), "{}", ended.stdout);
    }
    machines.into_iter().for_each(Machine::end);
    switch.end();
}
