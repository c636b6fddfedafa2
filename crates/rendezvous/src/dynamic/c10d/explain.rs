//! What a store's error means for a rendezvous: what was found, where, how long it was tried, and
//! what to do.

use rdzv_store::StoreError;

use crate::RendezvousError;

/// The error of an operation on the store at `place`.
pub(super) fn explain(error: StoreError, place: &str) -> RendezvousError {
    let place = place.to_owned();
    match error {
        StoreError::Connect {
            peer,
            attempts,
            reason,
            elapsed,
        } => RendezvousError::Unreachable {
            what: format!("no store was found ({reason}; {attempts} attempts)"),
            place: format!("the c10d endpoint {peer}"),
            elapsed: Some(elapsed),
            remedy: "start an agent on that host, or a store with `rdzv store`, and check that \
                     --rdzv-endpoint names it and that no firewall is in between"
                .to_owned(),
        },
        StoreError::NotAStore { peer, found } => RendezvousError::Unreachable {
            what: format!("something that is no store was found ({found})"),
            place: format!("the c10d endpoint {peer}"),
            elapsed: None,
            remedy: "check the address and port of --rdzv-endpoint, or choose a port that nothing \
                     else uses"
                .to_owned(),
        },
        StoreError::Disconnected {
            elapsed, source, ..
        } => RendezvousError::Unreachable {
            what: format!("the connection to the store was lost ({source})"),
            place,
            elapsed: Some(elapsed),
            remedy: "the agent that hosts it has ended, or its host is gone: see its log"
                .to_owned(),
        },
        StoreError::NoAnswer {
            operation,
            key,
            elapsed,
            ..
        } => RendezvousError::Unreachable {
            what: format!("the store did not answer ({operation} key {key})"),
            place,
            elapsed: Some(elapsed),
            remedy: "check the network and the load of its host; --rdzv-conf read_timeout=SECONDS \
                     waits longer"
                .to_owned(),
        },
        StoreError::Listen { address, source } => RendezvousError::Unreachable {
            what: format!("this node has to host the store, but cannot listen ({source})"),
            place: format!("{address}, for {place}"),
            elapsed: None,
            remedy: "stop what uses the port or choose another one in --rdzv-endpoint, or give \
                     --rdzv-conf is_host=0 if the store is there already"
                .to_owned(),
        },
        other => RendezvousError::Store(other),
    }
}
