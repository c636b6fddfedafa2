//! The attacked worker (a process of `rpc_scenario`), and honest workers.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_core::env::TORCHELASTIC_USE_AGENT_STORE;
use rdzv_rpc::transport::{PeerAddress, Token, TransportOptions};
use rdzv_rpc::{CallOptions, Method, RpcAgent, RpcError, RpcOptions};
use rdzv_rpc_proto::directory::Membership;
use rdzv_store::Store as _;
use serde_json::json;

use super::BETWEEN_CALLS;
use super::peer::{Target, tcp};
use super::worker::{Scenario, Worker};

const NOTHING: Method<(), ()> = Method::new("victim.nothing");

/// Longest time of a call of the honest worker, on a busy machine.
const ANSWERED: Duration = Duration::from_secs(60);

/// Longest time until memory is returned.
const GIVEN_BACK: Duration = Duration::from_secs(10);

const TOKEN: &str = "a token that the job has";

/// A worker in a separate process, and its job.
pub(crate) struct Victim {
    process: Worker,
    scenario: Scenario,
    token: Option<&'static str>,
    /// Memory of the process before the attack, in bytes.
    before: usize,
}

impl Victim {
    /// Starts a worker in a job with or without a token.
    pub(crate) fn new(with_token: bool) -> Self {
        let scenario = Scenario::new();
        let token = with_token.then_some(TOKEN);
        let allocator = [
            // The test must not count memory that the allocator keeps for later.
            ("MALLOC_ARENA_MAX", "1"),
            ("MALLOC_MMAP_THRESHOLD_", "16384"),
            ("MALLOC_TRIM_THRESHOLD_", "65536"),
            (TORCHELASTIC_USE_AGENT_STORE, "True"),
        ];
        let process = scenario.start_at(scenario.port(), "victim", 0, &allocator);
        let options = json!({ "num_worker_threads": 2, "lease": 60, "token": token });
        // Long limits, so that no peer gets in because another one timed out.
        let init = json!({ "options": options, "greeting": 60, "data": 2_u64 << 30 });
        process.init(&init).unwrap();
        let mut victim = Self {
            process,
            scenario,
            token,
            before: 0,
        };
        victim.before = victim.memory("VmRSS:");
        victim
    }

    /// Returns the data that an attacker has: the address, and maybe the token.
    pub(crate) fn target(&self, knows_token: bool) -> Target {
        let record = self.scenario.store().get("rdzv/rpc/1/members").unwrap();
        let record = Membership::decode(&record).unwrap();
        let victim = record.members().iter().find(|member| member.info.id.0 == 0);
        Target {
            peer_address: postcard::from_bytes::<PeerAddress>(&victim.unwrap().address).unwrap(),
            token: self.token().filter(|_| knows_token),
        }
    }

    fn token(&self) -> Option<Token> {
        self.token
            .map(|token| Token::new(token.as_bytes()).unwrap())
    }

    /// Reads a line of the status of the process, in bytes.
    fn memory(&self, line: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap();
        let value = status.lines().find_map(|found| found.strip_prefix(line));
        let kibibytes: usize = value
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        kibibytes << 10
    }

    /// Returns the peak of its memory beyond the start value.
    pub(crate) fn peak(&self) -> usize {
        self.memory("VmHWM:").saturating_sub(self.before)
    }

    /// Returns the memory beyond the start value, when it is at most this large.
    /// After a limit it returns the current value. The honest worker makes calls during the wait.
    pub(crate) fn settled(&self, at_most: usize, honest: &Honest) -> usize {
        let deadline = Instant::now() + GIVEN_BACK;
        loop {
            // Other code checks whether the call is answered.
            let _ = honest.try_to_ask();
            let now = self.memory("VmRSS:").saturating_sub(self.before);
            if now <= at_most || Instant::now() > deadline {
                return now;
            }
            thread::sleep(BETWEEN_CALLS);
        }
    }

    /// Starts an honest worker of the job.
    pub(crate) fn honest(&self, rank: u32, transports: TransportOptions) -> Honest {
        let options = RpcOptions {
            token: self.token(),
            transport: transports,
            lease: Duration::from_secs(60),
            ..RpcOptions::default()
        };
        let name = format!("honest{rank}");
        Honest(self.scenario.agent(&name, rank, None, options))
    }

    /// Starts an honest worker that calls over TCP, as the attackers do.
    pub(crate) fn honest_by_tcp(&self, rank: u32) -> Honest {
        self.honest(rank, tcp())
    }
}

/// A worker that follows the protocol.
pub(crate) struct Honest(RpcAgent);

impl Honest {
    /// Makes a call that must be answered.
    pub(crate) fn ask(&self) {
        self.try_to_ask().unwrap();
    }

    pub(crate) fn try_to_ask(&self) -> Result<(), RpcError> {
        let options = CallOptions::new().timeout(ANSWERED);
        self.0.call_with(options, "victim", NOTHING, &()).wait()
    }

    /// Returns the number of connections that the worker has made.
    pub(crate) fn connections(&self) -> u64 {
        self.0.traffic().connections
    }
}
