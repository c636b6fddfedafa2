//! The connections of this worker to the workers that it calls.
//!
//! A connection is opened when a call or a reference needs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_lock::Mutex;
use rdzv_rpc_proto::worker::WorkerId;

use crate::channel::client::Client;
use crate::channel::request::{Excess, Request, time_is_over};
use crate::error::{RpcError, RpcErrorKind};
use crate::runtime::member::{Member, Members};
use crate::wire::link::fail;

#[derive(Default)]
pub(crate) struct Peers(pub(super) Mutex<BTreeMap<WorkerId, Peer>>);

pub(super) enum Peer {
    /// A thread is connecting; these requests wait for the connection.
    Connecting(Vec<(Request, Excess)>),
    Open(Arc<Client>),
}

impl Peers {
    /// Returns the connection to a worker, if it is open.
    pub(crate) fn client(&self, worker: WorkerId) -> Option<Arc<Client>> {
        match self.0.lock().get(&worker) {
            Some(Peer::Open(client)) => Some(Arc::clone(client)),
            _ => None,
        }
    }

    pub(crate) fn clients(&self) -> Vec<Arc<Client>> {
        let peers = self.0.lock();
        let open = peers.values().filter_map(|peer| match peer {
            Peer::Open(client) => Some(Arc::clone(client)),
            Peer::Connecting(_) => None,
        });
        open.collect()
    }

    /// Returns the workers for which calls of this worker are in flight or waiting.
    pub(crate) fn busy(&self) -> Vec<WorkerId> {
        let peers = self.0.lock();
        let busy = peers.iter().filter(|(_, peer)| match peer {
            Peer::Open(client) => client.in_flight() > 0,
            Peer::Connecting(waiting) => !waiting.is_empty(),
        });
        busy.map(|(id, _)| *id).collect()
    }

    pub(super) fn failed(&self, member: &Member, error: &RpcError) {
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

    /// Removes a connection that has ended.
    ///
    /// Returns `false` if it is no longer the connection to its worker.
    pub(crate) fn lost(&self, lost: &Arc<Client>) -> bool {
        let mut peers = self.0.lock();
        let id = lost.worker().id;
        match peers.get(&id) {
            Some(Peer::Open(client)) if Arc::ptr_eq(client, lost) => peers.remove(&id).is_some(),
            _ => false,
        }
    }

    /// Closes the connections to workers that are no longer members.
    pub(crate) fn keep(&self, members: &Members) {
        let gone: Vec<_> = {
            let peers = self.0.lock();
            let open = peers.iter().filter_map(|(id, peer)| match peer {
                Peer::Open(client) => {
                    let stays = members
                        .get(id)
                        .is_some_and(|member| member.incarnation == client.incarnation);
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

    /// Ends the calls whose deadline has passed, and returns the next deadline.
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
                    request.deadline().is_some_and(|deadline| deadline <= now)
                };
                over.extend(requests.extract_if(.., is_over));
                let first = requests
                    .iter()
                    .filter_map(|(request, _)| request.deadline());
                waiting = first.chain(waiting).min();
            }
        }
        // Done without the lock, because code that handles the error may have to reach a worker.
        for (request, _) in over {
            let error = no_connection_in_time(request.timeout.unwrap_or_default());
            request.fail(error);
        }
        next.into_iter().chain(waiting).min()
    }

    /// Fails the requests that wait for a connection.
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

/// Returns the error of a call whose deadline passed before it was sent.
pub(crate) fn no_connection_in_time(limit: Duration) -> RpcError {
    time_is_over(
        limit,
        "no connection to the worker could be opened in that time",
    )
}
