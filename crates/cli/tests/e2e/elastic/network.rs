//! A link that is cut, so that no connection says anything any more: two network namespaces with a
//! cable between them.
//!
//! Needs user namespaces (`unshare -rn`) and `ip`. Where a machine does not allow them the test fails
//! and says why; `RDZV_TEST_NO_NAMESPACES=1` accepts that, and says so.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::PRINT_ROUND;
use crate::harness::{Job, Running, shell};

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
