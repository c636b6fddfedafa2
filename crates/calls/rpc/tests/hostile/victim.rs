//! The worker that is attacked (the program `rpc_victim`), and an honest one beside it.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::{PeerAddress, Token, TransportOptions};
use rdzv_rpc::{CallOptions, Method, RpcAgent, RpcError, RpcOptions};
use rdzv_rpc_proto::directory::Membership;
use rdzv_store::{ServerOptions, Store, TcpStore, TcpStoreOptions, TcpStoreServer};
use rdzv_testing::Process;

use super::BETWEEN_CALLS;
use super::peer::{Target, tcp};

const NOTHING: Method<(), ()> = Method::new("victim.nothing");

/// The longest time of a call of the honest worker, on a busy machine.
const ANSWERED: Duration = Duration::from_secs(60);

/// The longest time until memory is given back.
const GIVEN_BACK: Duration = Duration::from_secs(10);

const TOKEN: &str = "a token that the job has";

/// A worker in a process of its own, and the job that it is in.
pub(crate) struct Victim {
    process: Process,
    server: TcpStoreServer,
    token: Option<&'static str>,
    /// Memory before anything has happened, in bytes.
    before: usize,
}

impl Victim {
    /// Starts it, in a job with a token or without.
    pub(crate) fn new(with_token: bool) -> Self {
        let server = TcpStoreServer::start(ServerOptions::default()).unwrap();
        let token = with_token.then_some(TOKEN);
        let mut command = Command::new(rdzv_testing::program("rpc_victim"));
        command
            .arg(format!("127.0.0.1:{}", server.port()))
            .arg(token.unwrap_or("-"))
            // What the allocator keeps for later is not what is looked for.
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_MMAP_THRESHOLD_", "16384")
            .env("MALLOC_TRIM_THRESHOLD_", "65536")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let process = Process::start(&mut command);
        assert_eq!(process.line(), "ready");
        let mut victim = Self {
            process,
            server,
            token,
            before: 0,
        };
        victim.before = victim.memory("VmRSS:");
        victim
    }

    fn store(&self) -> TcpStore {
        TcpStore::connect(TcpStoreOptions::new("127.0.0.1", self.server.port())).unwrap()
    }

    /// The knowledge of an attacker: where it is, and the token if it is a worker of the job.
    pub(crate) fn target(&self, knows_token: bool) -> Target {
        let record = self.store().get("rdzv/rpc/1/members").unwrap();
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

    /// A line of its status in the system, in bytes.
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

    /// The most memory that it has had, beyond what it had at first.
    pub(crate) fn peak(&self) -> usize {
        self.memory("VmHWM:").saturating_sub(self.before)
    }

    /// The memory that it has beyond what it had at first, when it is no more than this any more, or
    /// after a while. Meanwhile the honest worker goes on.
    pub(crate) fn settled(&self, at_most: usize, honest: &Honest) -> usize {
        let until = Instant::now() + GIVEN_BACK;
        loop {
            // Whether it is answered is looked at elsewhere.
            let _ = honest.try_to_ask();
            let now = self.memory("VmRSS:").saturating_sub(self.before);
            if now <= at_most || Instant::now() > until {
                return now;
            }
            thread::sleep(BETWEEN_CALLS);
        }
    }

    /// A worker of the job.
    pub(crate) fn honest(&self, rank: u32, transports: TransportOptions) -> Honest {
        let options = RpcOptions {
            token: self.token(),
            transport: transports,
            lease: Duration::from_secs(60),
            ..RpcOptions::default()
        };
        let builder = RpcAgent::builder(format!("honest{rank}")).rank(rank);
        let builder = builder.store(Arc::new(self.store())).options(options);
        Honest(builder.connect().unwrap())
    }

    /// A worker of the job that calls over TCP, as the attackers do.
    pub(crate) fn honest_by_tcp(&self, rank: u32) -> Honest {
        self.honest(rank, tcp())
    }
}

/// A worker that keeps to the protocol.
pub(crate) struct Honest(RpcAgent);

impl Honest {
    /// Calls, and gets its answer.
    pub(crate) fn ask(&self) {
        self.try_to_ask().unwrap();
    }

    pub(crate) fn try_to_ask(&self) -> Result<(), RpcError> {
        let options = CallOptions::new().timeout(ANSWERED);
        self.0.call_with(options, "victim", NOTHING, &()).wait()
    }

    /// The number of connections that it has made.
    pub(crate) fn connections(&self) -> u64 {
        self.0.traffic().connections
    }
}
