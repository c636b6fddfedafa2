//! `env://`: everything from the environment, as a launcher left it.

use rdzv_core::endpoint::Endpoint;
use rdzv_core::env::{MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE};
use rdzv_core::rank::Rank;

use super::host::meet;
use super::parse::whole_number;
use super::{Joined, Opened, Url, UrlHandler, UrlOptions, wrong};
use crate::RendezvousError;

/// The handler of `env://`. Rank and world size in the query win over the environment.
#[derive(Debug, Clone, Copy)]
pub struct EnvHandler;

impl UrlHandler for EnvHandler {
    fn join(&self, url: &Url, options: &UrlOptions) -> Result<Joined, RendezvousError> {
        let rank = Rank(number(url, "rank", RANK, options)?);
        let world_size = number(url, "world_size", WORLD_SIZE, options)?;
        let endpoint = endpoint(options)?;
        let store = meet(&endpoint, rank, Some(world_size), options)?;
        Ok(Joined {
            store: Box::new(store),
            rank,
            world_size,
        })
    }

    fn open(&self, url: &Url, options: &UrlOptions) -> Result<Opened, RendezvousError> {
        let rank = Rank(number(url, "rank", RANK, options)?);
        let store = meet(&endpoint(options)?, rank, None, options)?;
        Ok(Opened {
            store: Box::new(store),
            rank,
        })
    }
}

fn expected(name: &str, options: &UrlOptions) -> Result<String, RendezvousError> {
    options.environment.get(name).ok_or_else(|| {
        wrong(
            "env",
            &format!("environment variable {name} expected, but not set"),
        )
    })
}

fn number(
    url: &Url,
    in_query: &str,
    name: &str,
    options: &UrlOptions,
) -> Result<u32, RendezvousError> {
    match url.number(in_query)? {
        Some(number) => Ok(number),
        None => whole_number(name, &expected(name, options)?),
    }
}

/// Where the store is.
fn endpoint(options: &UrlOptions) -> Result<Endpoint, RendezvousError> {
    let host = expected(MASTER_ADDR, options)?;
    let port = whole_number(MASTER_PORT, &expected(MASTER_PORT, options)?)?;
    let port = u16::try_from(port).map_err(|_| {
        RendezvousError::Argument(format!(
            "port must have value from 0 to 65535 but was {port}."
        ))
    })?;
    Ok(Endpoint { host, port })
}
