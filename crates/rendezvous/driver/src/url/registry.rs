//! Registry that maps URL schemes to their handlers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use rdzv_lock::Mutex;

use super::handlers::{EnvHandler, FileHandler, TcpHandler, UrlHandler};
use super::native::NativeHandler;
use super::{Joined, Opened, Url, UrlOptions};
use crate::RendezvousError;

/// Map from URL schemes to handlers.
#[derive(Default, Clone)]
pub struct Registry {
    handlers: BTreeMap<String, Arc<dyn UrlHandler>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.handlers.keys()).finish()
    }
}

impl Registry {
    /// Returns a registry with the built-in handlers: `env`, `file`, `rdzv`, `tcp`.
    pub fn with_defaults() -> Self {
        let mut handlers: BTreeMap<String, Arc<dyn UrlHandler>> = BTreeMap::new();
        handlers.insert("env".to_owned(), Arc::new(EnvHandler));
        handlers.insert("file".to_owned(), Arc::new(FileHandler));
        handlers.insert("rdzv".to_owned(), Arc::new(NativeHandler));
        handlers.insert("tcp".to_owned(), Arc::new(TcpHandler));
        Self { handlers }
    }

    /// Registers a handler. Returns an error if the scheme already has one.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the scheme already has a handler.
    pub fn register(
        &mut self,
        scheme: &str,
        handler: impl UrlHandler + 'static,
    ) -> Result<(), RendezvousError> {
        if self.handlers.contains_key(scheme) {
            let text = format!("Rendezvous handler for {scheme}:// already registered");
            return Err(RendezvousError::Argument(text));
        }
        self.handlers.insert(scheme.to_owned(), Arc::new(handler));
        Ok(())
    }

    /// Returns the rendezvous for a URL; [`UrlRendezvous::join`] then performs it.
    ///
    /// `rank` and `world_size`, if specified, are added to the query. In that case the URL must
    /// contain neither of them.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the URL is invalid, or its scheme has no handler.
    pub fn rendezvous(
        &self,
        url: &str,
        rank: Option<u32>,
        world_size: Option<u32>,
        options: UrlOptions,
    ) -> Result<UrlRendezvous, RendezvousError> {
        let (url, handler) = self.find(url, rank, world_size)?;
        Ok(UrlRendezvous {
            handler: Arc::clone(handler),
            url,
            options,
            joined: false,
        })
    }

    /// Opens the store for a URL without waiting for other workers.
    ///
    /// `rank` and `world_size` have the same meaning as in [`Self::rendezvous`]. Without a world
    /// size, the number of workers is unknown.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the URL is invalid, its scheme has no handler, or the store cannot be
    /// opened.
    pub fn open(
        &self,
        url: &str,
        rank: Option<u32>,
        world_size: Option<u32>,
        options: &UrlOptions,
    ) -> Result<Opened, RendezvousError> {
        let (url, handler) = self.find(url, rank, world_size)?;
        handler.open(&url, options)
    }

    /// Returns the URL with `rank` and `world_size` added, and its handler.
    fn find(
        &self,
        url: &str,
        rank: Option<u32>,
        world_size: Option<u32>,
    ) -> Result<(Url, &Arc<dyn UrlHandler>), RendezvousError> {
        let mut parsed = Url::parse(url)?;
        let given = [("rank", rank), ("world_size", world_size)];
        if given.iter().any(|(_, number)| number.is_some())
            && given
                .iter()
                .any(|(name, _)| parsed.query.contains_key(*name))
        {
            return Err(RendezvousError::Argument(format!(
                "The url: {url} has node-specific arguments(rank, world_size) already."
            )));
        }
        for (name, number) in given {
            if let Some(number) = number {
                parsed.query.insert(name.to_owned(), number.to_string());
            }
        }
        let handler = self.handlers.get(&parsed.scheme);
        let handler = handler.ok_or_else(|| {
            let scheme = &parsed.scheme;
            RendezvousError::Argument(format!("No rendezvous handler for {scheme}://"))
        })?;
        Ok((parsed, handler))
    }
}

/// Rendezvous for a URL. It has one round, unless its handler supports more.
pub struct UrlRendezvous {
    handler: Arc<dyn UrlHandler>,
    url: Url,
    options: UrlOptions,
    joined: bool,
}

impl fmt::Debug for UrlRendezvous {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "UrlRendezvous({})", self.url)
    }
}

impl UrlRendezvous {
    /// Joins the job.
    ///
    /// A second call joins the next round ([`UrlHandler::join_again`]). The built-in handlers
    /// reject a second call with the same error text as PyTorch.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the handler cannot join, or a second round is not possible.
    pub fn join(&mut self) -> Result<Joined, RendezvousError> {
        if self.joined {
            return self.handler.join_again(&self.url, &self.options);
        }
        let joined = self.handler.join(&self.url, &self.options)?;
        self.joined = true;
        Ok(joined)
    }
}

/// Registry that the whole process shares.
static OF_PROCESS: LazyLock<Mutex<Registry>> =
    LazyLock::new(|| Mutex::new(Registry::with_defaults()));

/// Registers a handler in the registry of this process.
///
/// # Errors
///
/// [`RendezvousError`] if the scheme already has a handler.
pub fn register_handler(
    scheme: &str,
    handler: impl UrlHandler + 'static,
) -> Result<(), RendezvousError> {
    OF_PROCESS.lock().register(scheme, handler)
}

/// Calls [`Registry::rendezvous`] on the registry of this process.
///
/// # Errors
///
/// [`RendezvousError`] if the URL is invalid, or its scheme has no handler.
pub fn rendezvous(
    url: &str,
    rank: Option<u32>,
    world_size: Option<u32>,
    options: UrlOptions,
) -> Result<UrlRendezvous, RendezvousError> {
    OF_PROCESS.lock().rendezvous(url, rank, world_size, options)
}

/// Calls [`Registry::open`] on the registry of this process.
///
/// # Errors
///
/// [`RendezvousError`] if the URL is invalid, its scheme has no handler, or the store cannot be
/// opened.
pub fn open(
    url: &str,
    rank: Option<u32>,
    world_size: Option<u32>,
    options: &UrlOptions,
) -> Result<Opened, RendezvousError> {
    // Opening a store may take long, so the lock is released first.
    let registry = OF_PROCESS.lock().clone();
    registry.open(url, rank, world_size, options)
}
