//! Connecting to a worker and greeting it; on a thread of its own, which may block.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc_proto::frame::hello::Hello;
use rdzv_rpc_proto::frame::{FrameKind, Header, Limits};
use rdzv_rpc_proto::worker::WorkerInfo;
use rustix::event::{PollFd, PollFlags};

use super::core::{Core, Member};
use crate::connection::client::Client;
use crate::connection::greeting::Greeting;
use crate::connection::lent::Lending;
use crate::connection::link::{Endpoint, Ends, Link, rest};
use crate::connection::reader::{Broken, Reader};
use crate::connection::server::Server;
use crate::connection::writer::{Left, Writer};
use crate::error::{RpcError, RpcErrorKind};
use crate::transport::{self, Carrier, Readiness, TransportError};

/// A worker that cannot be reached in this time is lost.
const IN_TIME: Duration = Duration::from_secs(10);

const NOBODY_THERE: &str = ". It has ended, or its host or the network in between is down: the next call \
                            tries again";

/// A connection to a member, ready for calls.
pub(crate) fn connect(core: &Arc<Core>, member: &Member) -> Result<Arc<Client>, RpcError> {
    if member.info.id == core.me.id {
        return with_oneself(core);
    }
    let begun = Instant::now();
    let until = begun + IN_TIME;
    let carrier =
        transport::connect(&member.contact, &core.transports, until).map_err(|error| {
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
    let mut ends = ends(core, carrier, Limits::UNAUTHENTICATED);
    let peer = greet(core, member, &mut ends, until)?;
    if peer.incarnation != member.incarnation {
        let text = "another worker of the same name answers at its address: it was restarted, \
                    and the group has not been told yet";
        return Err(RpcError::new(RpcErrorKind::PeerLost, text));
    }
    ends.reader.set_limits(core.limits);
    let lending = Lending::new(core.near(&peer, ends.process), core.pool.clone());
    open(core, &member.info, ends, lending)
}

/// Calls to oneself take the same way as others, through a pair of sockets.
fn with_oneself(core: &Arc<Core>) -> Result<Arc<Client>, RpcError> {
    let (near, far) = transport::oneself::pair().map_err(|error| {
        let text = format!("this worker cannot connect with itself: {error}");
        RpcError::new(RpcErrorKind::Internal, text)
    })?;
    let ends_far = ends(core, far, core.limits);
    let link = Link::new(Arc::clone(&core.poller), ends_far).map_err(|error| no_sockets(&error))?;
    let server = Arc::new(Server::oneself(link, core));
    adopt(core, &server)?;
    let lending = Lending::new(near.process, core.pool.clone());
    open(core, &core.me, ends(core, near, core.limits), lending)
}

pub(crate) fn ends(core: &Core, carrier: Carrier, limits: Limits) -> Ends {
    Ends {
        reader: Reader::new(carrier.read, limits, core.pool.clone()),
        writer: Writer::new(carrier.write),
        kind: carrier.kind,
        reason: carrier.reason,
        process: carrier.process,
        arenas: carrier.arenas,
        peer: carrier.peer,
        rhythm: core.rhythm,
    }
}

fn open(
    core: &Arc<Core>,
    worker: &WorkerInfo,
    ends: Ends,
    lending: Lending,
) -> Result<Arc<Client>, RpcError> {
    let link = Link::new(Arc::clone(&core.poller), ends).map_err(|error| no_sockets(&error))?;
    tracing::debug!(worker = %worker, transport = %link.kind, reason = link.reason, "connected");
    let client = Client::new(link, core.weak(), worker.clone(), lending);
    let client = Arc::new(client.map_err(|error| no_sockets(&error))?);
    adopt(core, &client)?;
    if let Some(ping) = client.lending.ping() {
        client.tell(FrameKind::Ping, 0, &ping)?;
    }
    Ok(client)
}

/// Has the driver look after a connection.
pub(crate) fn adopt<E: Endpoint + 'static>(core: &Core, endpoint: &Arc<E>) -> Result<(), RpcError> {
    let adopted: Arc<dyn Endpoint> = Arc::clone(endpoint) as _;
    core.poller
        .adopt(adopted)
        .map_err(|error| no_sockets(&error))?;
    if let Some(next) = endpoint.link().next_look() {
        core.look_by(next);
    }
    if let Some(helm) = endpoint.link().try_helm() {
        rest(endpoint, helm);
    }
    Ok(())
}

/// Says who we are, and learns who answers.
pub(crate) fn greet(
    core: &Core,
    member: &Member,
    ends: &mut Ends,
    until: Instant,
) -> Result<Hello, RpcError> {
    let (mut greeting, hello) =
        Greeting::connector(core.hello(), core.token.clone(), member.info.clone(), until);
    say(ends, FrameKind::Hello, &hello, until)?;
    loop {
        let frame = match ends.reader.next() {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                sleep(ends, PollFlags::IN, until)?;
                continue;
            }
            Err(broken) => return Err(ended(&broken)),
        };
        let said = greeting.take(&frame)?;
        for (kind, body) in said.answers {
            say(ends, kind, &body, until)?;
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
    until: Instant,
) -> Result<(), RpcError> {
    let mut left = ends.writer.send(&Header::new(kind), body, Vec::new());
    loop {
        match left {
            Ok(Left::Nothing) => return Ok(()),
            Ok(Left::Some) => sleep(ends, PollFlags::OUT, until)?,
            Err(error) => return Err(ended(&Broken::Failed(error))),
        }
        left = ends.writer.flush();
    }
}

/// Waits for frames or for room.
pub(crate) fn sleep(ends: &mut Ends, what: PollFlags, until: Instant) -> Result<(), RpcError> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        let text = format!(
            "the worker accepted the connection and did not say who it is within {} s: it is stopped, \
             or something else listens at its address",
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
        // What ends it early is a reason to look.
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
        Broken::Closed => "the worker closed the connection at once: it is ending".to_owned(),
        Broken::Failed(error) => format!("the connection failed at once: {error}"),
        Broken::Nonsense(error) => {
            format!("something that is no rdzv worker answers at its address: {error}")
        }
    };
    RpcError::new(RpcErrorKind::PeerLost, text)
}

fn no_sockets(error: &io::Error) -> RpcError {
    let text = format!("this worker cannot make a connection: {error}");
    RpcError::new(RpcErrorKind::Internal, text)
}
