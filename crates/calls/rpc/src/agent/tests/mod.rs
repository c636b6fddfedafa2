//! Tests of agents that call one another, all in this process.

mod arenas;
mod byzantine;
mod calls;
mod cancelled;
mod errors;
mod gather;
mod groups;
mod pressure;
mod time;
mod unauthenticated;

use std::net::Ipv4Addr;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rdzv_rpc_proto::frame::FrameLimits;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};

use crate::Methods;
use crate::device::CpuOnly;
use crate::rref::ReferenceSettings;
use crate::runtime::core::{RpcAgent, Setup};
use crate::runtime::member::{Member, Members};
use crate::transport::{Listener, Token, TransportKind, TransportOptions};

/// Settings for the agents of a group.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) worker_threads: usize,
    pub(crate) transports: TransportOptions,
    pub(crate) tokens: Vec<Option<Token>>,
    pub(crate) references: ReferenceSettings,
    /// Number of the agents' group.
    pub(crate) group: u64,
    pub(crate) limits: FrameLimits,
}

impl Made {
    /// Returns default settings, with these transports.
    pub(crate) fn over(transports: TransportOptions) -> Self {
        Self {
            transports,
            ..Self::default()
        }
    }
}

impl Default for Made {
    fn default() -> Self {
        Self {
            worker_threads: 4,
            transports: TransportOptions::default(),
            tokens: Vec::new(),
            references: ReferenceSettings::default(),
            group: 1,
            limits: FrameLimits::default(),
        }
    }
}

/// Returns the transports between workers of one host.
pub(crate) fn transports() -> [(TransportOptions, TransportKind); 3] {
    let shared = TransportOptions::default();
    let unix = TransportOptions {
        shared: false,
        ..shared.clone()
    };
    let tcp = TransportOptions {
        unix: false,
        ..shared.clone()
    };
    [
        (shared, TransportKind::Shared),
        (unix, TransportKind::Unix),
        (tcp, TransportKind::Tcp),
    ]
}

/// Longest time for an operation, even on a busy machine.
/// It is shorter than the time limit of a whole test.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// Polls until a condition holds.
pub(crate) fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONGEST;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {LONGEST:?}: {what}");
        std::thread::yield_now();
    }
}

/// Runs work that a defect could block without a limit.
/// After `limit` the test fails with the name of the work, and other tests continue. A thread that
/// hangs is abandoned.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, is_done) = mpsc::channel();
    let working = std::thread::spawn(move || {
        let result = work();
        // If the receiver was dropped, the test has failed already.
        let _ = done.send(());
        result
    });
    match is_done.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not over within {limit:?}: {what}"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
            working.join().unwrap_or_else(|panic| {
                resume_unwind(panic);
            })
        }
    }
}

/// Creates a group of `size` workers `w0`, `w1` and so on with these methods.
pub(crate) fn group(size: u32, methods: impl Fn() -> Methods) -> Vec<RpcAgent> {
    made(size, &Made::default(), methods)
}

pub(crate) fn made(size: u32, made: &Made, methods: impl Fn() -> Methods) -> Vec<RpcAgent> {
    let mut members = Members::new();
    let mut agents = Vec::new();
    for id in 0..size {
        let me = WorkerInfo {
            id: WorkerId(id),
            name: WorkerName::new(format!("w{id}")).unwrap(),
        };
        let transports = made.transports.clone();
        let listener = Listener::new(Ipv4Addr::LOCALHOST.into(), transports.clone()).unwrap();
        let peer_address = listener.peer_address().unwrap();
        let setup = Setup {
            me: me.clone(),
            incarnation: u64::from(id) + 1,
            group: made.group,
            token: made.tokens.get(id as usize).cloned().flatten(),
            limits: made.limits,
            timeout: Some(LONGEST),
            worker_threads: made.worker_threads,
            transports,
            backend: CpuOnly::shared(),
            references: made.references,
        };
        agents.push(RpcAgent::start(setup, methods(), listener, |_| ()).unwrap());
        members.insert(
            WorkerId(id),
            Member {
                info: me,
                incarnation: u64::from(id) + 1,
                peer_address,
            },
        );
    }
    for agent in &agents {
        agent.core().set_members(members.clone());
    }
    agents
}
