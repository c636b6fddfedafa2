//! The handler of `rdzv://host:port/job?world_size=N`: the workers meet as agents do, and no worker has to be at the
//! host of the URL, nor know its rank.
//!
//! A store server of ours at the endpoint runs the rendezvous; without one, a worker on that host
//! hosts it ([`C10dRendezvous`]). A worker that ends before all have come leaves no gap. The store
//! is a new one in each round, so workers of an earlier start of the same job do not disturb it.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdzv_core::rank::Rank;
use rdzv_store::{Store as _, TcpStore, TcpStoreOptions, interrupt};

use super::parse::whole_number;
use super::{Joined, Opened, Url, UrlHandler, UrlOptions, wrong};
use crate::dynamic::C10dRendezvous;
use crate::runtime::beside;
use crate::{Member, RendezvousBackend, RendezvousError, RendezvousInfo, RendezvousParameters};

/// Longest time that a worker stays for others whose ranks cannot be either.
const LEAVING: Duration = Duration::from_secs(5);

/// The value of `rank` that stands for none.
const AUTO: &str = "auto";

/// The handler of `rdzv://`.
///
/// | part of the URL | meaning |
/// |---|---|
/// | `host:port` | the endpoint of the rendezvous; port 29400 if there is none |
/// | `/job` | the run, the same for all workers; `default` if there is none |
/// | `world_size` | number of workers, needed |
/// | `rank` | `auto`, the default: in the order of the workers' addresses, then of their process ids. Or a number, of which no two workers may give the same |
#[derive(Debug, Clone, Copy)]
pub struct NativeHandler;

impl UrlHandler for NativeHandler {
    fn join(&self, url: &Url, options: &UrlOptions) -> Result<Joined, RendezvousError> {
        let wanted = Wanted::of(url)?;
        let backend = C10dRendezvous::from_parameters(&wanted.parameters(url, options)?)?;
        let (backend, info) = join(backend)?;
        let store = TcpStore::connect(TcpStoreOptions {
            timeout: options.timeout,
            credentials: options.credentials()?,
            ..TcpStoreOptions::new(&info.master_addr, info.master_port)
        })?;
        let rank = wanted.claim(&store, &info, options.timeout)?;
        Ok(Joined {
            // The others may be on their way through the rendezvous, and meet at the server.
            store: Box::new(store.holding(Arc::new(Mutex::new((backend, info))))),
            rank,
            world_size: wanted.world_size,
        })
    }

    /// Waits for all workers: the rendezvous is complete with the last one.
    fn open(&self, url: &Url, options: &UrlOptions) -> Result<Opened, RendezvousError> {
        let Joined { store, rank, .. } = self.join(url, options)?;
        Ok(Opened { store, rank })
    }
}

/// Takes part beside the caller, so that the check of [`rdzv_store::interruptible`] can end it.
fn join(mut backend: C10dRendezvous) -> Result<(C10dRendezvous, RendezvousInfo), RendezvousError> {
    let interrupter = backend.interrupter();
    let (sender, joined) = mpsc::sync_channel(1);
    let call = beside(move || {
        let member = Member {
            role: "default".to_owned(),
            local_world_size: 1,
            share_store: true,
            master_port: None,
        };
        let info = backend.join(&member);
        let _nobody_waits_any_more = sender.send(info.map(|info| (backend, info)));
    });
    call.map_err(|error| RendezvousError::Argument(format!("no thread can be made: {error}")))?;
    loop {
        let slice = interrupt::slice(None).unwrap_or(Duration::MAX);
        match joined.recv_timeout(slice) {
            Ok(joined) => return joined,
            Err(RecvTimeoutError::Disconnected) => return Err(RendezvousError::Interrupted),
            Err(RecvTimeoutError::Timeout) if !interrupt::is_wanted() => {}
            Err(RecvTimeoutError::Timeout) => {
                if let Some(interrupt) = &interrupter {
                    interrupt();
                }
                return Err(RendezvousError::Interrupted);
            }
        }
    }
}

/// The parts of a URL that say who takes part.
struct Wanted {
    /// Nothing: the rendezvous gives one.
    rank: Option<u32>,
    world_size: u32,
}

impl Wanted {
    fn of(url: &Url) -> Result<Self, RendezvousError> {
        let world_size = url.number("world_size")?;
        let world_size = world_size.ok_or_else(|| wrong("rdzv", "world size parameter missing"))?;
        if world_size == 0 {
            return Err(wrong("rdzv", "world_size is 0: a job has a worker"));
        }
        let rank = match url.query.get("rank").map(String::as_str) {
            None | Some(AUTO) => None,
            Some(rank) => Some(whole_number("rank", rank)?),
        };
        match rank {
            Some(rank) if rank >= world_size => Err(wrong(
                "rdzv",
                &format!(
                    "rank {rank} of {world_size}: ranks are 0 to {}",
                    world_size - 1
                ),
            )),
            _ => Ok(Self { rank, world_size }),
        }
    }

    fn parameters(
        &self,
        url: &Url,
        options: &UrlOptions,
    ) -> Result<RendezvousParameters, RendezvousError> {
        let host = url
            .host
            .as_ref()
            .ok_or_else(|| wrong("rdzv", "host missing; write rdzv://host:port/job"))?;
        let endpoint = match (host.contains(':'), url.port()?) {
            (false, Some(port)) => format!("{host}:{port}"),
            (true, Some(port)) => format!("[{host}]:{port}"),
            (false, None) => host.clone(),
            (true, None) => format!("[{host}]"),
        };
        let job = match url.path.trim_matches('/') {
            "" => "default",
            job => job,
        };
        // The options count whole seconds, at least one.
        let seconds = options.timeout.as_secs().clamp(1, u64::from(u32::MAX));
        let config = format!("join_timeout={seconds},read_timeout={seconds}");
        Ok(RendezvousParameters {
            credentials: options.credentials()?,
            ..RendezvousParameters::new(
                C10dRendezvous::NAME,
                endpoint,
                job,
                self.world_size,
                self.world_size,
                crate::RendezvousConfig::parse(&config)?,
            )?
        })
    }

    /// Takes the rank that was asked for, else that of the rendezvous. All workers learn of two that have the same.
    fn claim(
        &self,
        store: &TcpStore,
        info: &RendezvousInfo,
        timeout: Duration,
    ) -> Result<Rank, RendezvousError> {
        let own = self.rank.unwrap_or(info.rank.0);
        let key = |worker: u32| format!("rdzv/url/{worker}");
        store.set(&key(info.rank.0), own.to_string().as_bytes())?;
        let keys: Vec<String> = (0..self.world_size).map(key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        store.wait(&keys, Some(timeout))?;
        let mut taken = vec![false; keys.len()];
        let claimed = store.multi_get(&keys)?;
        let claimed = claimed
            .iter()
            .map(|rank| str::from_utf8(rank).ok()?.parse().ok());
        for rank in claimed {
            let place = rank.and_then(|rank: usize| taken.get_mut(rank));
            if place.is_some_and(|place| !std::mem::replace(place, true)) {
                continue;
            }
            // The one that hosts the store goes last. The others know all there is to know.
            let _ = store.barrier("rdzv/url/known", self.world_size, Some(LEAVING));
            let rank = rank.unwrap_or_default();
            return Err(wrong(
                "rdzv",
                &format!(
                    "two workers have rank {rank}; give every worker a rank of its own, or none"
                ),
            ));
        }
        Ok(Rank(own))
    }
}
