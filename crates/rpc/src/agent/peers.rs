//! The workers that this one calls, and the connections to them, which are made when they are needed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdzv_rpc_proto::calls::CreditLimits;
use rdzv_rpc_proto::rref::Input;
use rdzv_rpc_proto::worker::WorkerId;

use super::connect;
use super::core::{Core, Member, Members};
use crate::connection::client::Client;
use crate::connection::link::{Endpoint, fail};
use crate::connection::request::{Excess, Request, time_is_over};
use crate::error::{RpcError, RpcErrorKind};

/// Connections to other workers.
#[derive(Default)]
pub(crate) struct Peers(Mutex<BTreeMap<WorkerId, Peer>>);

enum Peer {
    /// A thread connects; these requests wait for it.
    Connecting(Vec<(Request, Excess)>),
    Open {
        client: Arc<Client>,
        incarnation: u64,
    },
}

impl Peers {
    /// The connection to a worker, if there is one.
    pub(crate) fn client(&self, worker: WorkerId) -> Option<Arc<Client>> {
        match self.0.lock().get(&worker) {
            Some(Peer::Open { client, .. }) => Some(Arc::clone(client)),
            _ => None,
        }
    }

    /// All connections there are.
    pub(crate) fn clients(&self) -> Vec<Arc<Client>> {
        let peers = self.0.lock();
        let open = peers.values().filter_map(|peer| match peer {
            Peer::Open { client, .. } => Some(Arc::clone(client)),
            Peer::Connecting(_) => None,
        });
        open.collect()
    }

    /// The workers that have calls of this one to answer, or are being connected to for some.
    pub(crate) fn busy(&self) -> Vec<WorkerId> {
        let peers = self.0.lock();
        let busy = peers.iter().filter(|(_, peer)| match peer {
            Peer::Open { client, .. } => client.in_flight() > 0,
            Peer::Connecting(waiting) => !waiting.is_empty(),
        });
        busy.map(|(id, _)| *id).collect()
    }

    /// Sends a request to a member, over a new connection if there is none. Says whether too much
    /// waits for that connection to go on making requests.
    pub(crate) fn begin(
        core: &Arc<Core>,
        member: &Member,
        request: Request,
        excess: Excess,
    ) -> bool {
        let id = member.info.id;
        let mut peers = core.peers.0.lock();
        match peers.get_mut(&id) {
            Some(Peer::Open {
                client,
                incarnation,
            }) if *incarnation == member.incarnation && client.link().ended().is_none() => {
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
                if let Some(Peer::Open { client, .. }) = former {
                    let text = "the worker was replaced by another one of the same rank";
                    fail(&client, RpcError::new(RpcErrorKind::PeerLost, text));
                }
                Self::connect(core, member.clone());
                false
            }
        }
    }

    /// The connection to a member. If there is none yet, one is made, and the references are told.
    pub(crate) fn reach(core: &Core, member: &Member) -> Option<Arc<Client>> {
        let id = member.info.id;
        let mut peers = core.peers.0.lock();
        match peers.get(&id) {
            Some(Peer::Open {
                client,
                incarnation,
            }) if *incarnation == member.incarnation && client.link().ended().is_none() => {
                Some(Arc::clone(client))
            }
            Some(Peer::Connecting(_)) => None,
            // Whoever has the place is being replaced, or has just been lost.
            Some(Peer::Open { .. }) => None,
            None => {
                peers.insert(id, Peer::Connecting(Vec::new()));
                drop(peers);
                if let Some(core) = core.weak().upgrade() {
                    Self::connect(&core, member.clone());
                }
                None
            }
        }
    }

    fn connect(core: &Arc<Core>, member: Member) {
        if core.is_stopped() {
            return core.peers.failed(&member, &RpcError::stopping());
        }
        let starter = Arc::clone(core);
        let named = std::thread::Builder::new().name(format!("rpc>{}", member.info.name));
        let target = member.clone();
        let started = named.spawn(move || match connect::connect(&starter, &target) {
            Ok(client) => starter.peers.connected(&starter, &target, client),
            Err(error) => {
                starter.peers.failed(&target, &error);
                starter.cut_off(target.info.id);
            }
        });
        if let Err(error) = started {
            let text = format!("no thread can be started to connect to it: {error}");
            core.peers
                .failed(&member, &RpcError::new(RpcErrorKind::Internal, text));
        }
    }

    fn connected(&self, core: &Core, member: &Member, client: Arc<Client>) {
        let open = Peer::Open {
            client: Arc::clone(&client),
            incarnation: member.incarnation,
        };
        // Those that have waited for the connection go before those that are made now.
        let order = client.order();
        let former = self.0.lock().insert(member.info.id, open);
        core.counters.connected();
        core.gathers.connected(&member.info, member.incarnation);
        if core.is_stopped() {
            fail(&client, RpcError::stopping());
        }
        if let Some(Peer::Connecting(waiting)) = former {
            let first = waiting.iter().filter_map(|(request, _)| request.until());
            let first = first.min();
            for (request, excess) in waiting {
                if !request.slot.is_filled() {
                    client.begin_in(&order, request, excess);
                }
            }
            // Between the two places nobody has seen them: their time may have been over meanwhile.
            if let Some(first) = first {
                core.note_deadline(first);
            }
        }
        drop(order);
        core.references
            .tell(core, Input::Reachable(member.holder()));
    }

    fn failed(&self, member: &Member, error: &RpcError) {
        let mut peers = self.0.lock();
        if !matches!(peers.get(&member.info.id), Some(Peer::Connecting(_))) {
            return;
        }
        let waiting = peers.remove(&member.info.id);
        drop(peers);
        if let Some(Peer::Connecting(waiting)) = waiting {
            for (request, _) in waiting {
                request.fail(error.clone().with_worker(member.info.clone()));
            }
        }
    }

    /// A connection is over. Says which process of the worker's name it was to, unless there is
    /// another one to it.
    pub(crate) fn lost(&self, lost: &Arc<Client>) -> Option<u64> {
        let mut peers = self.0.lock();
        let id = lost.worker().id;
        match peers.get(&id) {
            Some(Peer::Open {
                client,
                incarnation,
            }) if Arc::ptr_eq(client, lost) => {
                let incarnation = *incarnation;
                peers.remove(&id);
                Some(incarnation)
            }
            _ => None,
        }
    }

    /// Closes the connections to workers that are not members any more.
    pub(crate) fn keep(&self, members: &Members) {
        let gone: Vec<_> = {
            let peers = self.0.lock();
            let open = peers.iter().filter_map(|(id, peer)| match peer {
                Peer::Open {
                    client,
                    incarnation,
                } => {
                    let stays = members
                        .get(id)
                        .is_some_and(|member| member.incarnation == *incarnation);
                    (!stays).then(|| Arc::clone(client))
                }
                Peer::Connecting(_) => None,
            });
            open.collect()
        };
        for client in gone {
            let text = "the worker has left the group, or was lost";
            fail(&client, RpcError::new(RpcErrorKind::PeerLost, text));
        }
    }

    /// Ends the calls whose time is over; says when the next one's is.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let next = self
            .clients()
            .into_iter()
            .filter_map(|client| client.expire(now));
        let next = next.min();
        let mut waiting = None;
        let mut over = Vec::new();
        for peer in self.0.lock().values_mut() {
            if let Peer::Connecting(requests) = peer {
                let is_over = |(request, _): &mut (Request, Excess)| {
                    request.until().is_some_and(|until| until <= now)
                };
                over.extend(requests.extract_if(.., is_over));
                let first = requests.iter().filter_map(|(request, _)| request.until());
                waiting = first.chain(waiting).min();
            }
        }
        // Without the lock: whoever is told may have to reach a worker.
        for (request, _) in over {
            let error = no_connection_in_time(request.timeout.unwrap_or_default());
            request.fail(error);
        }
        next.into_iter().chain(waiting).min()
    }

    /// Requests that wait for a connection fail.
    pub(crate) fn stop(&self) {
        let peers = std::mem::take(&mut *self.0.lock());
        for peer in peers.into_values() {
            if let Peer::Connecting(waiting) = peer {
                for (request, _) in waiting {
                    request.fail(RpcError::stopping());
                }
            }
        }
    }
}

/// The error of a call whose time was over before there was a connection.
pub(crate) fn no_connection_in_time(limit: Duration) -> RpcError {
    time_is_over(limit, "the worker could not be reached in that time")
}
