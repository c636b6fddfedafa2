//! `tcp://host:port?rank=R&world_size=N`

use rdzv_core::endpoint::Endpoint;
use rdzv_core::rank::Rank;

use super::host::meet;
use super::{Joined, Url, UrlHandler, UrlOptions, wrong};
use crate::RendezvousError;

/// The handler of `tcp://`.
#[derive(Debug, Clone, Copy)]
pub struct TcpHandler;

impl UrlHandler for TcpHandler {
    fn join(&self, url: &Url, options: &UrlOptions) -> Result<Joined, RendezvousError> {
        let port = url.port()?;
        let port = port.ok_or_else(|| wrong("tcp", "port number missing"))?;
        let rank = url.number("rank")?;
        let rank = rank.ok_or_else(|| wrong("tcp", "rank parameter missing"))?;
        let world_size = url.number("world_size")?;
        let world_size = world_size.ok_or_else(|| wrong("tcp", "world size parameter missing"))?;
        let host = url.host.clone();
        let host =
            host.ok_or_else(|| RendezvousError::Argument("hostname cannot be None".to_owned()))?;
        let store = meet(&Endpoint { host, port }, Rank(rank), world_size, options)?;
        Ok(Joined {
            store: Box::new(store),
            rank: Rank(rank),
            world_size,
        })
    }
}
