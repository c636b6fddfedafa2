//! Opens a group's store from an init-method URL.
//!
//! | URL | store | rank, if none is given |
//! |---|---|---|
//! | `env://` | TCP, at `MASTER_ADDR`:`MASTER_PORT` | `RANK` |
//! | `tcp://host:port` | TCP, at this endpoint | `?rank=R` |
//! | `file:///path` | that file | `?rank=R` |
//!
//! Rank 0 hosts a TCP store, unless the agent that started the workers hosts it. Opening the store
//! waits for its host, but not for the other workers. Forming the group waits for all workers, and
//! its errors name the missing ones. Programs can register handlers for other schemes in
//! `rdzv_rendezvous::url`.

use std::sync::Arc;
use std::time::Duration;

pub use rdzv_rendezvous::Environment;
use rdzv_rendezvous::RendezvousError;
use rdzv_rendezvous::url::{UrlOptions, open};
use rdzv_rpc_proto::worker::WorkerId;
use rdzv_store::Store;

use crate::{RpcError, RpcErrorKind};

/// A store, and the rank of this worker in the group that forms in the store.
#[derive(Debug, Clone)]
pub struct OpenedStore {
    /// The store, which must live as long as the group: this process may host it.
    pub store: Arc<dyn Store>,
    /// Rank that the caller, the URL or the environment specifies.
    pub rank: WorkerId,
}

/// Opens the store of an init-method URL, within the deadline.
///
/// # Errors
///
/// `InvalidArgument` for a world size of 0, for a rank that is not below the world size, and for
/// mistakes in the URL or the environment. `Store` if this worker cannot reach or host the store.
pub fn open_store(
    url: &str,
    rank: Option<u32>,
    world_size: Option<u32>,
    deadline: Duration,
    environment: Environment,
) -> Result<OpenedStore, RpcError> {
    check_size(rank, world_size)?;
    let options = UrlOptions {
        timeout: deadline,
        environment,
        ..UrlOptions::default()
    };
    let opened = open(url, rank, world_size, &options).map_err(failed)?;
    let rank = opened.rank.0;
    check_size(Some(rank), world_size)?;
    Ok(OpenedStore {
        store: Arc::from(opened.store),
        rank: WorkerId(rank),
    })
}

/// Rejects an empty group, and a rank outside of the group.
pub(crate) fn check_size(rank: Option<u32>, world_size: Option<u32>) -> Result<(), RpcError> {
    match (rank, world_size) {
        (_, Some(0)) => Err(RpcError::invalid(
            "a static RPC group needs a world size of at least 1, got 0; for a group that workers \
             can join and leave, omit the world size",
        )),
        (Some(rank), Some(world_size)) if rank >= world_size => Err(RpcError::invalid(format!(
            "rank {rank} is not below the world size of {world_size}"
        ))),
        _ => Ok(()),
    }
}

fn failed(error: RendezvousError) -> RpcError {
    let kind = match error {
        RendezvousError::Argument(_) => RpcErrorKind::InvalidArgument,
        _ => RpcErrorKind::Store,
    };
    RpcError::new(kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn refused(
        url: &str,
        rank: Option<u32>,
        world_size: Option<u32>,
        environment: &[(&str, &str)],
    ) -> String {
        let environment = Environment::of(environment.iter().copied());
        let error = open_store(url, rank, world_size, LONG, environment).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
        error.message
    }

    #[test]
    fn what_cannot_be_right_is_refused_before_a_store_is_looked_for() {
        // There is no host at this address; connecting to it would time out slowly.
        let tcp = "tcp://192.0.2.1:1";
        assert!(refused(tcp, Some(0), Some(0), &[]).contains("at least 1, got 0"));
        assert!(refused(tcp, Some(2), Some(2), &[]).contains("rank 2 is not below"));
        assert_eq!(
            refused(tcp, None, None, &[]),
            "Error initializing torch.distributed using tcp:// rendezvous: rank parameter missing"
        );
        assert_eq!(
            refused("tcp://h", Some(0), None, &[]),
            "Error initializing torch.distributed using tcp:// rendezvous: port number missing"
        );
        assert_eq!(
            refused("file://", Some(0), None, &[]),
            "Error initializing torch.distributed using file:// rendezvous: path missing"
        );
        for (variables, missing) in [
            (&[][..], "RANK"),
            (&[("RANK", "0")], "MASTER_ADDR"),
            (&[("RANK", "0"), ("MASTER_ADDR", "h")], "MASTER_PORT"),
        ] {
            assert_eq!(
                refused("env://", None, None, variables),
                format!(
                    "Error initializing torch.distributed using env:// rendezvous: environment \
                     variable {missing} expected, but not set"
                )
            );
        }
        assert_eq!(
            refused("x://y", Some(0), None, &[]),
            "No rendezvous handler for x://"
        );
        assert!(refused("tcp://h:1?rank=0", Some(0), None, &[]).contains("node-specific"));
    }

    #[test]
    fn workers_meet_where_the_environment_says() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        drop(listener);
        let open = |rank: &str, world_size| {
            let variables = [
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", &port),
                ("RANK", rank),
                // The world size of the job; only some of its workers are in the group.
                ("WORLD_SIZE", "7"),
            ];
            open_store("env://", None, world_size, LONG, Environment::of(variables))
        };
        let first = open("0", None).unwrap();
        let second = open("1", Some(2)).unwrap();
        first.store.set("key", b"value").unwrap();
        assert_eq!(second.store.get("key").unwrap(), "value");
        assert_eq!((first.rank, second.rank), (WorkerId(0), WorkerId(1)));
        let error = open("2", Some(2)).unwrap_err();
        assert!(error.message.contains("rank 2 is not below"), "{error}");
    }
}
