//! Two simulated machines with a cable: network namespaces and their programs.
//!
//! The tests need user namespaces (`unshare -rn`) and `ip`. Without them a test fails with the
//! reason. `RDZV_TEST_NO_NAMESPACES=1` accepts that and prints a note instead.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Instant;

use rdzv_core::env::TORCHELASTIC_USE_AGENT_STORE;
use rdzv_testing::{DEADLINE, Process, TestAuthority};
use serde_json::json;

use super::worker::Worker;

pub(crate) const NEAR: &str = "10.9.0.1";
pub(crate) const FAR: &str = "10.9.0.2";

/// Link address to which packets go while the cable is cut.
/// No interface has this address, so no host receives the packets or reports their loss.
const NOWHERE: &str = "02:00:00:00:00:99";

fn start(mut command: Command) -> Process {
    Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
}

/// One of the two machines, held by a process that waits.
pub(crate) struct Machine {
    holder: Process,
    pub(crate) address: &'static str,
}

impl Machine {
    /// Creates a machine, or returns the reason why it cannot.
    fn new(mut enter: Vec<String>, address: &'static str) -> Result<Self, String> {
        enter.extend(["sh", "-c", "ip link set lo up && echo up && exec cat"].map(str::to_owned));
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).stderr(Stdio::piped());
        let mut holder = start(command);
        if holder.stdout.line_within(DEADLINE) == Ok("up".to_owned()) {
            return Ok(Self { holder, address });
        }
        holder.kill();
        Err(holder.stderr.all())
    }

    fn enter(&self) -> Vec<String> {
        let pid = self.holder.pid().to_string();
        let words = ["nsenter", "--preserve-credentials", "-U", "-n", "-t", &pid];
        words.map(str::to_owned).into()
    }

    /// Creates a command that runs on this machine.
    fn command(&self, program: &str) -> Command {
        let enter = self.enter();
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).arg(program);
        command
    }

    fn run(&self, script: &str) {
        let status = self.command("sh").args(["-ec", script]).status().unwrap();
        assert!(status.success(), "{script}");
    }
}

/// Two machines, a cable between them, and a store on the near one.
pub(crate) struct World {
    // Processes end before the machines that they run on.
    _store: Process,
    store: SocketAddr,
    pub(crate) near: Machine,
    pub(crate) far: Machine,
    /// `None` for a dynamic group.
    pub(crate) world_size: Option<u32>,
    /// Heartbeat limit in seconds.
    pub(crate) heartbeat_limit: u32,
    /// Authority that signs the certificates of the workers; `None` for plain TCP.
    authority: Option<TestAuthority>,
}

impl World {
    /// Creates the machines; `None` if an environment variable accepts a failure.
    pub(crate) fn new(world_size: Option<u32>, heartbeat_limit: u32) -> Option<Self> {
        match Self::try_new(world_size, heartbeat_limit) {
            Ok(world) => Some(world),
            Err(why) if std::env::var_os("RDZV_TEST_NO_NAMESPACES").is_some() => {
                eprintln!("NOT TESTED: a cut link, because this machine has no namespaces: {why}");
                None
            }
            Err(why) => panic!("no network namespaces here: {why}"),
        }
    }

    fn try_new(world_size: Option<u32>, heartbeat_limit: u32) -> Result<Self, String> {
        let near = Machine::new(["unshare", "-rn"].map(str::to_owned).into(), NEAR)?;
        let mut enter = near.enter();
        enter.extend(["unshare", "-n"].map(str::to_owned));
        let far = Machine::new(enter, FAR)?;
        near.run(&format!(
            "ip link add cable type veth peer name cable netns {}; \
             ip addr add {NEAR}/24 dev cable; ip link set cable up",
            far.holder.pid()
        ));
        far.run(&format!(
            "ip addr add {FAR}/24 dev cable; ip link set cable up"
        ));
        let mut server = near.command(rdzv_testing::program("serve").to_str().unwrap());
        server.arg(NEAR);
        let server = start(server);
        let store: SocketAddr = server.line().parse().unwrap();
        Ok(Self {
            _store: server,
            store,
            near,
            far,
            world_size,
            heartbeat_limit,
            authority: None,
        })
    }

    /// Makes the workers use TLS.
    pub(crate) fn with_tls(self) -> Self {
        let authority = Some(TestAuthority::new());
        Self { authority, ..self }
    }

    /// Starts a worker on a machine, which begins to join its group.
    pub(crate) fn start(&self, machine: &Machine, name: &str, rank: u32) -> Worker {
        let program = rdzv_testing::program("rpc_scenario");
        let mut command = machine.command(program.to_str().unwrap());
        command.env(TORCHELASTIC_USE_AGENT_STORE, "True");
        let (host, port) = (self.store.ip().to_string(), self.store.port());
        let worker = Worker::start(command, &host, port, name, rank);
        let tls = self.authority.as_ref().map(|authority| {
            let (certificate, key) = authority.files(name);
            json!({ "certificate": certificate, "key": key, "authorities": authority.file() })
        });
        let options = json!({
            "address": machine.address,
            "heartbeat_limit": self.heartbeat_limit,
            // Longer than the heartbeat limit in tests with a dynamic group.
            "lease": 6,
            "tls": tls,
        });
        // Time for which a user of a value may be out of reach.
        let init = json!({ "world_size": self.world_size, "options": options, "lost_after": 1 });
        worker.begin_init(&init);
        worker
    }

    /// Cuts the cable: packets are lost, and no process is notified.
    pub(crate) fn cut(&self) -> Instant {
        let send_to_nowhere = |machine: &Machine, to: &str| {
            let entry = format!("ip neigh replace {to} lladdr {NOWHERE} dev cable nud permanent");
            machine.run(&entry);
        };
        // In this order, so that the near machine still gets earlier packets of the far one.
        send_to_nowhere(&self.near, FAR);
        let cut = Instant::now();
        send_to_nowhere(&self.far, NEAR);
        cut
    }

    /// Restores the cable.
    pub(crate) fn mend(&self) {
        self.near.run(&format!("ip neigh del {FAR} dev cable"));
        self.far.run(&format!("ip neigh del {NEAR} dev cable"));
    }
}

/// Waits until the workers are in their group.
pub(crate) fn are_ready(workers: &[&Worker]) {
    for worker in workers {
        worker.succeeds();
    }
}
