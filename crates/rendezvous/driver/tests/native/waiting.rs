//! Calls that block delay no lease. Programs with a runtime can call the crate.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::RunId;
use rdzv_rendezvous::dynamic::native::{NativeOptions, OwnVoter, VoterCandidate};
use rdzv_rendezvous::dynamic::{
    Driver, DriverOptions, Notice, SharedState, StateToken, Written, node,
};
use rdzv_rendezvous::{Change, RendezvousBackend as _, RendezvousError};
use rdzv_rendezvous_proto::coordinator::wire::{
    Authority, Event, Operation, PROBE, PROBE_ANSWER, VoterList,
};
use rdzv_rendezvous_proto::{FencePolicy, Settings};
use rdzv_store::{HashStore, Store, StoreError, StorePolicy};

use crate::agents::{Agent, LONG, host, member, settings};

/// Time for which a call blocks.
const BLOCKED: Duration = Duration::from_secs(10);

/// Lease of the workers of a node.
const FENCE: Duration = Duration::from_secs(3);

/// Minimum number of new leases while a call blocks.
///
/// An agent sends four requests during a lease.
const LEASES: usize = 8;

/// Starts a coordinator of one node, and returns its address.
///
/// It grants each lease and invites the agent to become a voter.
fn coordinator() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    address
}

/// Serves a connection until the peer closes it.
fn serve(mut stream: TcpStream) -> io::Result<()> {
    let address = stream.local_addr()?.to_string();
    let mut preamble = [0; 10];
    stream.read_exact(&mut preamble)?;
    let nonce = &preamble[6..];
    if nonce != PROBE.to_le_bytes() {
        // This is the store connection, which stays unused.
        stream.write_all(nonce)?;
        return io::copy(&mut stream, &mut io::sink()).map(drop);
    }
    stream.write_all(&PROBE_ANSWER.to_le_bytes())?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = u64::from_le_bytes(head[1..].try_into().unwrap());
        let mut fields = vec![0; length as usize];
        stream.read_exact(&mut fields)?;
        let events = match Operation::read(head[0], &fields).unwrap() {
            Operation::Join(_) => vec![
                Event::Attached(Authority {
                    cluster: 1,
                    timeout: LONG,
                    takes_voters: true,
                    ..Authority::default()
                }),
                Event::Recoverable {
                    round: 0,
                    host: None,
                },
                Event::Fence {
                    round: 0,
                    acts: true,
                },
                Event::Formed {
                    round: 0,
                    rank: 0,
                    world_size: 1,
                    assignment: None,
                    replaced: Vec::new(),
                },
            ],
            Operation::Master { round, addr, port } => vec![Event::Master { round, addr, port }],
            Operation::Lease { number, .. } => vec![Event::Backed { number }],
            Operation::Candidate { willing: true } => vec![Event::Voters(VoterList {
                addresses: vec![address.clone()],
                voters: 1,
                invites: true,
            })],
            Operation::Leave => vec![Event::Left],
            Operation::Heartbeat => vec![Event::Alive(None)],
            _ => Vec::new(),
        };
        let mut bytes = Vec::new();
        events.iter().for_each(|event| event.write(&mut bytes));
        stream.write_all(&bytes)?;
    }
}

/// Blocks as a silent name server does; reports the start and the end.
fn block(blocked: &mpsc::Sender<bool>) {
    blocked.send(true).unwrap();
    thread::sleep(BLOCKED);
    let _nobody_waits_any_more = blocked.send(false);
}

/// State whose answers take long.
struct SlowState(mpsc::Sender<bool>);

impl SharedState for SlowState {
    fn name(&self) -> &str {
        "slow"
    }

    fn get(&mut self) -> Result<Option<(Bytes, StateToken)>, RendezvousError> {
        block(&self.0);
        Err(RendezvousError::Argument("too slow".to_owned()))
    }

    fn set(&mut self, _: &[u8], _: Option<&StateToken>) -> Result<Written, RendezvousError> {
        unreachable!("the state is read first")
    }

    fn watch(&mut self, _: Arc<dyn Fn(Notice) + Send + Sync>) -> Result<bool, RendezvousError> {
        Ok(false)
    }

    fn round_store(&self, _: u64) -> Result<Arc<dyn Store>, RendezvousError> {
        Ok(Arc::new(HashStore::new()))
    }

    fn local_address(&self) -> Option<IpAddr> {
        None
    }

    fn endpoint(&self) -> String {
        "a slow store".to_owned()
    }
}

#[test]
fn a_resolver_and_a_store_that_block_delay_no_lease() {
    let address = coordinator();
    let (reads, blocked) = mpsc::channel();
    let resolves = reads.clone();
    let mut settings = settings(1, 1);
    (settings.fence, settings.node_timeout) = (FencePolicy::Auto, FENCE);
    // The start of a voter resolves the name of the endpoint.
    let candidate = VoterCandidate {
        endpoint: Endpoint {
            host: address.ip().to_string(),
            port: address.port(),
        },
        start: Some(Box::new(move |_| {
            block(&resolves);
            Err(StoreError::Listen {
                address: "nowhere".to_owned(),
                source: io::ErrorKind::NotFound.into(),
            })
        })),
        voter: OwnVoter::default(),
        note: None,
        redirect: None,
    };
    let mut agent = Agent::with(NativeOptions {
        candidate: Some(candidate),
        ..Agent::options(address, 0, settings)
    });
    let options = DriverOptions {
        run_id: RunId::new("job"),
        settings: Settings::new(1, 1),
        me: node::describe("127.0.0.1"),
        timeout: LONG,
        policy: StorePolicy::default(),
    };
    let mut driver = Driver::start(Box::new(SlowState(reads)), options).unwrap();
    let joining = thread::spawn(move || driver.join(&member()).map(drop));
    agent.join().unwrap();
    for _call in 0..2 {
        assert_eq!(blocked.recv_timeout(LONG), Ok(true));
    }
    let (mut last, mut leases) = (Instant::now(), 0);
    while blocked.try_recv().is_err() {
        if let Change::Lease { .. } = agent.change() {
            assert!(last.elapsed() < FENCE, "a lease has ended");
            (last, leases) = (Instant::now(), leases + 1);
        }
    }
    assert!(leases >= LEASES, "{leases} leases");
    joining.join().unwrap().unwrap_err();
}

/// Lets an agent of one node join and end.
fn meet() {
    let server = host();
    let mut agent = Agent::new(server.local_addr(), 0, settings(1, 1));
    assert_eq!(agent.join().unwrap().rank.0, 0);
    assert!(agent.native.shutdown());
}

#[test]
fn a_program_without_a_runtime_can_take_part() {
    meet();
    // The runtime has ended with the first agent; a second runtime starts.
    meet();
}

#[tokio::test]
async fn a_program_can_take_part_inside_of_its_runtime() {
    meet();
    tokio::spawn(async { meet() }).await.unwrap();
    tokio::task::spawn_blocking(meet).await.unwrap();
}
