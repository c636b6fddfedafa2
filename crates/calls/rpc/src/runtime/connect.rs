//! Opens connections to workers, on threads that may block.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rdzv_rpc_proto::calls::CreditLimits;
use rdzv_rpc_proto::frame::hello::Hello;
use rdzv_rpc_proto::frame::{FrameKind, FrameLimits, Header};
use rdzv_rpc_proto::rref::Input;
use rdzv_rpc_proto::worker::WorkerInfo;
use rustix::event::{PollFd, PollFlags};

use crate::bulk::remote_read::Lending;
use crate::channel::client::Client;
use crate::channel::client::ClientOwner;
use crate::channel::request::{Excess, Request};
use crate::error::{RpcError, RpcErrorKind};
use crate::runtime::core::Core;
use crate::runtime::member::{Caller, Member};
use crate::runtime::peers::Peer;
use crate::runtime::server::Server;
use crate::transport::{self, Carrier, Readiness, TransportError};
use crate::wire::handshake::Greeting;
use crate::wire::link::{self, Endpoint, Ends, Link, fail, rest};
use crate::wire::reader::{Broken, Reader};
use crate::wire::writer::{Left, Writer};

/// Error text for a connection that this worker lacks the resources for.
const NO_SOCKETS: &str = "this worker cannot create a connection";

/// Time limit for opening a connection; after it, the waiting calls fail.
const IN_TIME: Duration = Duration::from_secs(10);

const NOBODY_THERE: &str = ". The worker has exited, or its host or the network is down: the next \
                            call tries again";

impl Core {
    /// Sends a request to a member, over a new connection if necessary.
    ///
    /// Returns `true` if so much waits for the new connection that the caller should pause.
    pub(crate) fn send_request(
        self: &Arc<Self>,
        member: &Member,
        request: Request,
        excess: Excess,
    ) -> bool {
        let id = member.info.id;
        let mut peers = self.peers.0.lock();
        match peers.get_mut(&id) {
            Some(Peer::Open(client)) if client.serves(member.incarnation) => {
                let client = Arc::clone(client);
                drop(peers);
                client.begin(request, excess);
                false
            }
            Some(Peer::Connecting(waiting)) => {
                waiting.push((request, excess));
                let sizes = waiting
                    .iter()
                    .map(|(request, _)| request.payload.len() as u64);
                let limits = CreditLimits::default();
                waiting.len() > limits.calls as usize || sizes.sum::<u64>() > limits.bytes
            }
            _ => {
                let waiting = Peer::Connecting(vec![(request, excess)]);
                let former = peers.insert(id, waiting);
                drop(peers);
                if let Some(Peer::Open(client)) = former {
                    let text = "the worker was replaced by another worker with the same rank";
                    fail(&client, RpcError::new(RpcErrorKind::PeerLost, text));
                }
                self.connect_to(member.clone());
                false
            }
        }
    }

    /// Returns the connection to a member, if it is open.
    ///
    /// If there is no entry for the member, this starts to open a connection. The references are
    /// notified once it is open.
    pub(crate) fn reach(self: &Arc<Self>, member: &Member) -> Option<Arc<Client>> {
        let id = member.info.id;
        let mut peers = self.peers.0.lock();
        match peers.get(&id) {
            Some(Peer::Open(client)) if client.serves(member.incarnation) => {
                Some(Arc::clone(client))
            }
            // Another thread is making or replacing the connection, or it was just lost.
            Some(_) => None,
            None => {
                peers.insert(id, Peer::Connecting(Vec::new()));
                drop(peers);
                self.connect_to(member.clone());
                None
            }
        }
    }

    fn connect_to(self: &Arc<Self>, member: Member) {
        if self.is_stopped() {
            return self.peers.failed(&member, &RpcError::stopping());
        }
        let starter = Arc::clone(self);
        let named = std::thread::Builder::new().name(format!("rpc>{}", member.info.name));
        let target = member.clone();
        let started = named.spawn(move || match connect(&starter, &target) {
            Ok(client) => starter.connected(&target, client),
            Err(error) => {
                starter.peers.failed(&target, &error);
                starter.cut_off(target.info.id);
            }
        });
        if let Err(error) = started {
            let failed = RpcError::internal("cannot start a thread that connects to the worker");
            self.peers.failed(&member, &failed(error));
        }
    }

    fn connected(self: &Arc<Self>, member: &Member, client: Arc<Client>) {
        let open = Peer::Open(Arc::clone(&client));
        // Requests that waited for the connection go before requests made from now on.
        let order = client.order();
        let former = self.peers.0.lock().insert(member.info.id, open);
        self.counters.connected();
        self.gathers.connected(&member.info, member.incarnation);
        if self.is_stopped() {
            fail(&client, RpcError::stopping());
        }
        if let Some(Peer::Connecting(waiting)) = former {
            let first = waiting.iter().filter_map(|(request, _)| request.deadline());
            let first = first.min();
            for (request, excess) in waiting {
                if !request.slot.is_filled() {
                    client.begin_in(&order, request, excess);
                }
            }
            // Between the two tables, no thread checked the deadlines of these requests.
            if let Some(first) = first {
                self.note_deadline(first);
            }
        }
        drop(order);
        self.references
            .handle(self, Input::Reachable(member.holder()));
    }
}

/// Opens a connection to a member, ready for calls.
pub(crate) fn connect(core: &Arc<Core>, member: &Member) -> Result<Arc<Client>, RpcError> {
    if member.info.id == core.me.id {
        return with_oneself(core, member.incarnation);
    }
    let begun = Instant::now();
    let deadline = begun + IN_TIME;
    let carrier =
        transport::connect(&member.peer_address, &core.transports, deadline).map_err(|error| {
            use TransportError::{Late, Refused, RefusedBy, Unreachable};
            let (kind, remedy) = match error {
                Refused { .. } | RefusedBy { .. } => (RpcErrorKind::Protocol, ""),
                Unreachable { .. } | Late { .. } => (RpcErrorKind::PeerLost, NOBODY_THERE),
                _ => (RpcErrorKind::PeerLost, ""),
            };
            let text = format!("{error} ({} ms){remedy}", begun.elapsed().as_millis());
            RpcError::new(kind, text)
        })?;
    carrier
        .check_name(member.info.name.as_str())
        .map_err(|error| RpcError::new(RpcErrorKind::Protocol, error.to_string()))?;
    let mut ends = ends(core, carrier, FrameLimits::UNAUTHENTICATED);
    let peer = greet(core, member, &mut ends, deadline)?;
    if peer.incarnation != member.incarnation {
        let text = "another worker with the same name answered at this address: the worker was \
                    restarted, and the group has not reported the restart yet";
        return Err(RpcError::new(RpcErrorKind::PeerLost, text));
    }
    ends.reader.set_limits(core.limits);
    let lending = Lending::new(core.local_process(&peer, ends.process), core.pool.clone());
    open(core, (&member.info, member.incarnation), ends, lending)
}

/// Opens the connection of a worker to itself, through a pair of sockets.
/// Its calls take the same path as other calls.
fn with_oneself(core: &Arc<Core>, incarnation: u64) -> Result<Arc<Client>, RpcError> {
    let (near, far) = transport::same_process::pair()
        .map_err(RpcError::internal("this worker cannot connect to itself"))?;
    let ends_far = ends(core, far, core.limits);
    let link =
        Link::new(Arc::clone(&core.poller), ends_far).map_err(RpcError::internal(NO_SOCKETS))?;
    let caller = Caller {
        worker: core.me.clone(),
        incarnation: core.incarnation,
        lending: Arc::new(Lending::new(link.process, core.pool.clone())),
    };
    let server = Arc::new(Server::loopback(link, core, caller.into()));
    adopt(core, &server)?;
    let lending = Lending::new(near.process, core.pool.clone());
    let near = ends(core, near, core.limits);
    open(core, (&core.me, incarnation), near, lending)
}

pub(crate) fn ends(core: &Core, carrier: Carrier, limits: FrameLimits) -> Ends {
    Ends {
        reader: Reader::new(carrier.read, limits, core.pool.clone()),
        writer: Writer::new(carrier.write),
        kind: carrier.kind,
        reason: carrier.reason,
        process: carrier.process,
        leases: carrier.arenas,
        peer: carrier.peer,
        rhythm: core.rhythm,
    }
}

fn open(
    core: &Arc<Core>,
    (worker, incarnation): (&WorkerInfo, u64),
    ends: Ends,
    lending: Lending,
) -> Result<Arc<Client>, RpcError> {
    let link = Link::new(Arc::clone(&core.poller), ends).map_err(RpcError::internal(NO_SOCKETS))?;
    tracing::debug!(worker = %worker, transport = %link.kind, reason = link.reason, "connected");
    let owner: Weak<dyn ClientOwner> = Arc::<Core>::downgrade(core);
    let counters = Arc::clone(&core.counters);
    let runtime = core.executor.handle().clone();
    let to = (worker.clone(), incarnation);
    let client = Client::new(link, owner, counters, runtime, to, lending);
    let client = Arc::new(client.map_err(RpcError::internal(NO_SOCKETS))?);
    adopt(core, &client)?;
    if let Some(ping) = client.lending.ping() {
        client.tell(FrameKind::Ping, 0, &ping)?;
    }
    Ok(client)
}

/// Registers a connection with the driver.
pub(crate) fn adopt<E: Endpoint + 'static>(core: &Core, endpoint: &Arc<E>) -> Result<(), RpcError> {
    link::adopt(endpoint).map_err(RpcError::internal(NO_SOCKETS))?;
    if let Some(next) = endpoint.link().next_look() {
        core.check_hosts_by(next);
    }
    if let Some(reader) = endpoint.link().try_reader() {
        rest(endpoint, reader);
    }
    Ok(())
}

/// Sends this worker's greeting, and returns the greeting of the peer.
pub(crate) fn greet(
    core: &Core,
    member: &Member,
    ends: &mut Ends,
    deadline: Instant,
) -> Result<Hello, RpcError> {
    let (mut greeting, hello) = Greeting::connector(
        core.hello(),
        core.token.clone(),
        member.info.clone(),
        deadline,
    );
    say(ends, FrameKind::Hello, &hello, deadline)?;
    loop {
        let frame = match ends.reader.next() {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                sleep(ends, PollFlags::IN, deadline)?;
                continue;
            }
            Err(broken) => return Err(ended(&broken)),
        };
        let said = greeting.take(&frame)?;
        for (kind, body) in said.answers {
            say(ends, kind, &body, deadline)?;
        }
        if let Some(peer) = said.peer {
            return Ok(peer);
        }
    }
}

pub(crate) fn say(
    ends: &mut Ends,
    kind: FrameKind,
    body: &[u8],
    deadline: Instant,
) -> Result<(), RpcError> {
    let mut left = ends.writer.send(&Header::new(kind), body, Vec::new());
    loop {
        match left {
            Ok(Left::Nothing) => return Ok(()),
            Ok(Left::Some) => sleep(ends, PollFlags::OUT, deadline)?,
            Err(error) => return Err(ended(&Broken::Failed(error))),
        }
        left = ends.writer.flush();
    }
}

/// Waits for frames or for room to send.
pub(crate) fn sleep(ends: &mut Ends, what: PollFlags, deadline: Instant) -> Result<(), RpcError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        let text = format!(
            "the worker accepted the connection but did not identify itself within {} s: it is \
             stopped, or another process listens at its address",
            IN_TIME.as_secs()
        );
        return Err(RpcError::new(RpcErrorKind::PeerLost, text));
    }
    let reading = what == PollFlags::IN;
    let ready = if reading {
        ends.reader.prepare_to_sleep()
    } else {
        ends.writer.prepare_to_sleep()
    };
    if ready {
        let writable = ends.writer.half().ready_when() == Readiness::Writable;
        let (descriptor, what) = if reading {
            (ends.reader.half().descriptor(), PollFlags::IN)
        } else if writable {
            (ends.writer.half().descriptor(), PollFlags::OUT)
        } else {
            (ends.writer.half().descriptor(), PollFlags::IN)
        };
        // If the wait ends early, the caller checks again.
        let mut watched = [PollFd::from_borrowed_fd(descriptor, what)];
        let _ = rdzv_event::poll(&mut watched, Some(left));
    }
    if reading {
        ends.reader.awake();
    } else {
        ends.writer.awake();
    }
    Ok(())
}

fn ended(broken: &Broken) -> RpcError {
    let text = match broken {
        Broken::Closed => {
            "the worker closed the connection immediately: it has exited, or is shutting down"
                .to_owned()
        }
        Broken::Failed(error) => format!("the connection failed immediately: {error}"),
        Broken::Nonsense(error) => {
            format!("a process that is not an rdzv worker answered at its address: {error}")
        }
    };
    RpcError::new(RpcErrorKind::PeerLost, text)
}
