//! `tcp://host:port?rank=R&world_size=N`

use rdzv_core::endpoint::Endpoint;
use rdzv_core::rank::Rank;

use super::host::meet;
use super::{Joined, Opened, Url, UrlHandler, UrlOptions, wrong};
use crate::RendezvousError;

/// The handler of `tcp://`.
#[derive(Debug, Clone, Copy)]
pub struct TcpHandler;

impl UrlHandler for TcpHandler {
    fn join(&self, url: &Url, options: &UrlOptions) -> Result<Joined, RendezvousError> {
        let port = port(url)?;
        let rank = rank(url)?;
        let world_size = url.number("world_size")?;
        let world_size = world_size.ok_or_else(|| wrong("tcp", "world size parameter missing"))?;
        let host = host(url)?;
        let store = meet(&Endpoint { host, port }, rank, Some(world_size), options)?;
        Ok(Joined {
            store: Box::new(store),
            rank,
            world_size,
        })
    }

    fn open(&self, url: &Url, options: &UrlOptions) -> Result<Opened, RendezvousError> {
        let (port, rank, host) = (port(url)?, rank(url)?, host(url)?);
        let store = meet(&Endpoint { host, port }, rank, None, options)?;
        Ok(Opened {
            store: Box::new(store),
            rank,
        })
    }
}

fn port(url: &Url) -> Result<u16, RendezvousError> {
    let port = url.port()?;
    port.ok_or_else(|| wrong("tcp", "port number missing"))
}

fn rank(url: &Url) -> Result<Rank, RendezvousError> {
    let rank = url.number("rank")?;
    rank.map(Rank)
        .ok_or_else(|| wrong("tcp", "rank parameter missing"))
}

fn host(url: &Url) -> Result<String, RendezvousError> {
    let host = url.host.clone();
    host.ok_or_else(|| RendezvousError::Argument("hostname cannot be None".to_owned()))
}
