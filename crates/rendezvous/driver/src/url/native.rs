//! Handler of `rdzv://host:port/job?world_size=N`.
//!
//! The workers form a group in the same way as agents do. They need not run on the host in the URL,
//! and need not know their ranks.
//!
//! An rdzv store server at the endpoint runs the rendezvous. If no server is there, a worker on
//! that host starts one ([`C10dRendezvous`]). A worker that exits before all workers have joined
//! leaves no gap in the ranks. Each round has a new store, so workers from an earlier start of the
//! job cannot interfere.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdzv_core::rank::Rank;
use rdzv_store::{Store as _, TcpStore, TcpStoreOptions, interrupt};

use super::handlers::check_rank;
use super::parse::whole_number;
use super::{Joined, Opened, Url, UrlHandler, UrlOptions, UrlStore, wrong};
use crate::dynamic::C10dRendezvous;
use crate::runtime::beside;
use crate::{
    JoiningAgent, RendezvousBackend, RendezvousError, RendezvousInfo, RendezvousParameters,
};

/// Maximum time to wait for the other workers after a conflict of ranks.
const LEAVING: Duration = Duration::from_secs(5);

/// Value of `rank` with which the rendezvous assigns the rank.
const AUTO: &str = "auto";

/// Handler of `rdzv://`.
///
/// | part of the URL | meaning |
/// |---|---|
/// | `host:port` | endpoint of the rendezvous; the default port is 29400 |
/// | `/job` | name of the run, the same for all workers; the default is `default` |
/// | `world_size` | number of workers, required |
/// | `rank` | `auto` (default), which orders workers by address and process id, or a unique number |
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
            // Other workers may still be in the rendezvous and use this server.
            store: UrlStore::Tcp(store.holding(Arc::new(Mutex::new((backend, info))))),
            rank,
            world_size: wanted.world_size,
        })
    }

    fn open(&self, url: &Url, options: &UrlOptions) -> Result<Opened, RendezvousError> {
        let Joined { store, rank, .. } = self.join(url, options)?;
        Ok(Opened { store, rank })
    }
}

/// Joins on a separate thread, so that the user can interrupt the wait.
///
/// The check function of [`rdzv_store::interruptible`] reports the interrupt.
fn join(mut backend: C10dRendezvous) -> Result<(C10dRendezvous, RendezvousInfo), RendezvousError> {
    let interrupter = backend.interrupter();
    let (sender, joined) = mpsc::sync_channel(1);
    let call = beside(move || {
        let member = JoiningAgent {
            role: "default".to_owned(),
            local_world_size: 1,
            share_store: true,
            master_port: None,
            lost: Vec::new(),
        };
        let info = backend.join(&member);
        let _nobody_waits_any_more = sender.send(info.map(|info| (backend, info)));
    });
    call.map_err(|error| {
        RendezvousError::Argument(format!("cannot start a thread for the rendezvous: {error}"))
    })?;
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

/// Parameters of the job from the URL.
struct Wanted {
    /// Rank in the URL; `None` lets the rendezvous assign it.
    rank: Option<u32>,
    world_size: u32,
}

impl Wanted {
    fn of(url: &Url) -> Result<Self, RendezvousError> {
        let world_size = url.number("world_size")?;
        let world_size = world_size.ok_or_else(|| wrong("rdzv", "world size parameter missing"))?;
        let rank = match url.query.get("rank").map(String::as_str) {
            None | Some(AUTO) => None,
            Some(rank) => Some(whole_number("rank", rank)?),
        };
        check_rank("rdzv", Rank(rank.unwrap_or(0)), Some(world_size))?;
        Ok(Self { rank, world_size })
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
        // The options take whole seconds, and at least one.
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

    /// Claims the rank in the URL, or the rank from the rendezvous.
    ///
    /// Every worker gets an error if two workers claim the same rank.
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
            let is_taken = rank.and_then(|rank: usize| taken.get_mut(rank));
            if is_taken.is_some_and(|is_taken| !std::mem::replace(is_taken, true)) {
                continue;
            }
            // The host of the store leaves last. By now the others know everything they need.
            let _ = store.barrier("rdzv/url/known", self.world_size, Some(LEAVING));
            let rank = rank.unwrap_or_default();
            return Err(wrong(
                "rdzv",
                &format!(
                    "two workers have rank {rank}; give each worker a different rank, or no worker \
                     a rank"
                ),
            ));
        }
        Ok(Rank(own))
    }
}
