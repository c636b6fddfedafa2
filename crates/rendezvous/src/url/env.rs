//! `env://`: everything from the environment, as a launcher left it.

use rdzv_core::endpoint::Endpoint;
use rdzv_core::env::{MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE};
use rdzv_core::rank::Rank;

use super::host::meet;
use super::parse::whole_number;
use super::{Joined, Url, UrlHandler, UrlOptions, wrong};
use crate::RendezvousError;

/// The handler of `env://`. Rank and world size in the query win over the environment.
#[derive(Debug, Clone, Copy)]
pub struct EnvHandler;

impl UrlHandler for EnvHandler {
    fn join(&self, url: &Url, options: &UrlOptions) -> Result<Joined, RendezvousError> {
        let expected = |name: &str| {
            options.environment.get(name).ok_or_else(|| {
                wrong(
                    "env",
                    &format!("environment variable {name} expected, but not set"),
                )
            })
        };
        let number = |in_query: &str, name: &str| match url.number(in_query)? {
            Some(number) => Ok(number),
            None => whole_number(name, &expected(name)?),
        };
        let rank = Rank(number("rank", RANK)?);
        let world_size = number("world_size", WORLD_SIZE)?;
        let host = expected(MASTER_ADDR)?;
        let port = whole_number(MASTER_PORT, &expected(MASTER_PORT)?)?;
        let port = u16::try_from(port).map_err(|_| {
            RendezvousError::Argument(format!(
                "port must have value from 0 to 65535 but was {port}."
            ))
        })?;
        let store = meet(&Endpoint { host, port }, rank, world_size, options)?;
        Ok(Joined {
            store: Box::new(store),
            rank,
            world_size,
        })
    }
}
