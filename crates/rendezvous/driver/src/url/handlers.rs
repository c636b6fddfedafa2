//! Handlers for the URLs `tcp://`, `env://` and `file://`.
//!
//! Their formats are `tcp://host:port?rank=R&world_size=N`, `env://` and
//! `file:///path?rank=R&world_size=N`. `env://` reads the values that its query does not contain
//! from environment variables that a launcher sets.

use rdzv_core::endpoint::{Endpoint, bare_host};
use rdzv_core::env::{MASTER_ADDR, MASTER_PORT, RANK, TORCHELASTIC_USE_AGENT_STORE, WORLD_SIZE};
use rdzv_core::rank::Rank;
use rdzv_store::{FileStore, TcpStore, TcpStoreOptions};

use super::parse::{integer, whole_number};
use super::{Joined, Opened, Url, UrlOptions, UrlStore, wrong};
use crate::bind::loopback;
use crate::{Environment, RendezvousError};

/// Handler for the URLs with one scheme.
///
/// Every closure `Fn(&Url, &UrlOptions) -> Result<Joined, RendezvousError>` implements this trait.
pub trait UrlHandler: Send + Sync {
    /// Joins the job, and returns its store with this worker's rank and world size.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the URL is incomplete or the store cannot be reached.
    fn join(&self, url: &Url, options: &UrlOptions) -> Result<Joined, RendezvousError>;

    /// Opens the store without waiting for other workers.
    ///
    /// This method is for groups that find their members themselves.
    ///
    /// The rank is that in the query, or for `env://` that in `RANK`. `world_size` is optional, and
    /// specifies the final number of workers. The handler of `rdzv://` is an exception: it needs
    /// the same query as its [`UrlHandler::join`], and waits for all workers too.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the URL is incomplete, the store cannot be reached, or the handler
    /// cannot open a store.
    fn open(&self, url: &Url, _options: &UrlOptions) -> Result<Opened, RendezvousError> {
        Err(RendezvousError::Argument(format!(
            "the rendezvous handler for {}:// cannot open a store without waiting for all workers; \
             use env://, tcp:// or file://",
            url.scheme
        )))
    }

    /// Joins the next round of the same rendezvous.
    ///
    /// The built-in handlers return an error.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the handler has only one round.
    fn join_again(&self, url: &Url, _options: &UrlOptions) -> Result<Joined, RendezvousError> {
        Err(RendezvousError::Argument(format!(
            "Unable to perform re-rendezvous using {}:// method",
            url.scheme
        )))
    }
}

impl<F> UrlHandler for F
where
    F: Fn(&Url, &UrlOptions) -> Result<Joined, RendezvousError> + Send + Sync,
{
    fn join(&self, url: &Url, options: &UrlOptions) -> Result<Joined, RendezvousError> {
        self(url, options)
    }
}

/// Handler for `tcp://`.
#[derive(Debug, Clone, Copy)]
pub struct TcpHandler;

impl UrlHandler for TcpHandler {
    fn join(&self, url: &Url, options: &UrlOptions) -> Result<Joined, RendezvousError> {
        let port = port(url)?;
        let (rank, world_size) = rank_and_world_size(url)?;
        let host = host(url)?;
        let store = connect(&Endpoint { host, port }, rank, Some(world_size), options)?;
        Ok(Joined {
            store,
            rank,
            world_size,
        })
    }

    fn open(&self, url: &Url, options: &UrlOptions) -> Result<Opened, RendezvousError> {
        let (port, rank, host) = (port(url)?, rank(url)?, host(url)?);
        check_rank("tcp", rank, url.number("world_size")?)?;
        let store = connect(&Endpoint { host, port }, rank, None, options)?;
        Ok(Opened { store, rank })
    }
}

fn port(url: &Url) -> Result<u16, RendezvousError> {
    let port = url.port()?;
    port.ok_or_else(|| wrong("tcp", "port number missing"))
}

fn rank(url: &Url) -> Result<Rank, RendezvousError> {
    let rank = url.number("rank")?;
    rank.map(Rank)
        .ok_or_else(|| wrong(&url.scheme, "rank parameter missing"))
}

/// Reads both numbers, after checking that the URL contains both.
fn rank_and_world_size(url: &Url) -> Result<(Rank, u32), RendezvousError> {
    let missing = |what: &str| wrong(&url.scheme, &format!("{what} parameter missing"));
    if !url.query.contains_key("rank") {
        return Err(missing("rank"));
    }
    if !url.query.contains_key("world_size") {
        return Err(missing("world size"));
    }
    let rank = rank(url)?;
    let world_size = url.number("world_size")?;
    let world_size = world_size.ok_or_else(|| missing("world size"))?;
    check_rank(&url.scheme, rank, Some(world_size))?;
    Ok((rank, world_size))
}

/// Checks that a rank belongs to a job of this size.
pub(super) fn check_rank(
    scheme: &str,
    rank: Rank,
    world_size: Option<u32>,
) -> Result<(), RendezvousError> {
    match world_size {
        Some(0) => Err(wrong(
            scheme,
            "world_size is 0: a job has at least one worker",
        )),
        Some(size) if rank.0 >= size => {
            let text = format!("rank {rank} of {size}: ranks are 0 to {}", size - 1);
            Err(wrong(scheme, &text))
        }
        _ => Ok(()),
    }
}

fn host(url: &Url) -> Result<String, RendezvousError> {
    let host = url.host.clone();
    host.ok_or_else(|| RendezvousError::argument("hostname cannot be None"))
}

/// Handler for `env://`. Values in the query override environment variables.
#[derive(Debug, Clone, Copy)]
pub struct EnvHandler;

impl UrlHandler for EnvHandler {
    fn join(&self, url: &Url, options: &UrlOptions) -> Result<Joined, RendezvousError> {
        let rank = Rank(query_or_variable(url, "rank", RANK, options)?);
        let world_size = query_or_variable(url, "world_size", WORLD_SIZE, options)?;
        let endpoint = endpoint_of(options)?;
        check_rank("env", rank, Some(world_size))?;
        let store = connect(&endpoint, rank, Some(world_size), options)?;
        Ok(Joined {
            store,
            rank,
            world_size,
        })
    }

    fn open(&self, url: &Url, options: &UrlOptions) -> Result<Opened, RendezvousError> {
        let rank = Rank(query_or_variable(url, "rank", RANK, options)?);
        let store = connect(&endpoint_of(options)?, rank, None, options)?;
        Ok(Opened { store, rank })
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

fn query_or_variable(
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

fn endpoint_of(options: &UrlOptions) -> Result<Endpoint, RendezvousError> {
    let host = bare_host(&expected(MASTER_ADDR, options)?).to_owned();
    let port = integer(&expected(MASTER_PORT, options)?)?;
    let port = u16::try_from(port).map_err(|_| {
        RendezvousError::Argument(format!(
            "port must have value from 0 to 65535 but was {port}."
        ))
    })?;
    Ok(Endpoint { host, port })
}

/// Handler for `file://`. It ignores a host in the URL.
#[derive(Debug, Clone, Copy)]
pub struct FileHandler;

impl UrlHandler for FileHandler {
    fn join(&self, url: &Url, _options: &UrlOptions) -> Result<Joined, RendezvousError> {
        let path = path(url)?;
        let (rank, world_size) = rank_and_world_size(url)?;
        Ok(Joined {
            store: UrlStore::File(FileStore::open(path, Some(world_size))?),
            rank,
            world_size,
        })
    }

    /// Opens the store in the file.
    ///
    /// The last worker deletes the file at the end only if the URL has a world size.
    fn open(&self, url: &Url, _options: &UrlOptions) -> Result<Opened, RendezvousError> {
        let (path, rank, world_size) = (path(url)?, rank(url)?, url.number("world_size")?);
        check_rank("file", rank, world_size)?;
        let store = FileStore::open(path, world_size)?;
        Ok(Opened {
            store: UrlStore::File(store),
            rank,
        })
    }

    fn join_again(&self, _url: &Url, _options: &UrlOptions) -> Result<Joined, RendezvousError> {
        let text = "Unable to perform rerendezvous using file:// method";
        Err(RendezvousError::argument(text))
    }
}

fn path(url: &Url) -> Result<&str, RendezvousError> {
    match &*url.path {
        "" => Err(wrong("file", "path missing")),
        path => Ok(path),
    }
}

/// Connects a worker to the store at `endpoint`, hosting it if necessary.
///
/// If the agent hosts a store at exactly this endpoint, all workers are its clients. Otherwise the
/// worker with rank 0 hosts the store. With a `world_size`, that worker also waits until all
/// workers have joined. Several masters in one process share one server.
fn connect(
    endpoint: &Endpoint,
    rank: Rank,
    world_size: Option<u32>,
    options: &UrlOptions,
) -> Result<UrlStore, RendezvousError> {
    if endpoint.port == 0 && (rank != Rank(0) || world_size.is_some_and(|size| size > 1)) {
        return Err(RendezvousError::Argument(format!(
            "port 0 of {} cannot be shared: rank 0 would listen on a port that the other workers \
             do not know; give all workers the same port, which must be free on that host",
            endpoint.host
        )));
    }
    let environment = &options.environment;
    let by_agent = is_agents_store(endpoint, environment);
    let store = TcpStore::connect(TcpStoreOptions {
        world_size,
        is_master: !by_agent && rank == Rank(0),
        multi_tenant: !by_agent,
        bind: loopback(&endpoint.host),
        timeout: options.timeout,
        credentials: options.credentials()?,
        agent_hosts: environment.is_true(TORCHELASTIC_USE_AGENT_STORE)
            && environment.get(MASTER_PORT) == Some(endpoint.port.to_string()),
        ..TcpStoreOptions::new(&endpoint.host, endpoint.port)
    })?;
    Ok(UrlStore::Tcp(store))
}

fn is_agents_store(endpoint: &Endpoint, environment: &Environment) -> bool {
    let is = |name: &str, value: &str| environment.get(name).as_deref() == Some(value);
    is(TORCHELASTIC_USE_AGENT_STORE, "True")
        && is(MASTER_ADDR, &endpoint.host)
        && is(MASTER_PORT, &endpoint.port.to_string())
}
