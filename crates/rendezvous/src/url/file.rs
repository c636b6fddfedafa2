//! `file:///path?rank=R&world_size=N`

use rdzv_core::rank::Rank;
use rdzv_store::FileStore;

use super::{Joined, Opened, Url, UrlHandler, UrlOptions, wrong};
use crate::RendezvousError;

/// The handler of `file://`. Only the path counts, a host in the URL does not.
#[derive(Debug, Clone, Copy)]
pub struct FileHandler;

impl UrlHandler for FileHandler {
    fn join(&self, url: &Url, _options: &UrlOptions) -> Result<Joined, RendezvousError> {
        if url.path.is_empty() {
            return Err(wrong("file", "path missing"));
        }
        let rank = url.number("rank")?;
        let rank = rank.ok_or_else(|| wrong("file", "rank parameter missing"))?;
        let world_size = url.number("world_size")?;
        let world_size = world_size.ok_or_else(|| wrong("file", "world size parameter missing"))?;
        Ok(Joined {
            store: Box::new(FileStore::open(&url.path, Some(world_size))?),
            rank: Rank(rank),
            world_size,
        })
    }

    /// The file stays when all have closed it, unless the URL says how many they are.
    fn open(&self, url: &Url, _options: &UrlOptions) -> Result<Opened, RendezvousError> {
        if url.path.is_empty() {
            return Err(wrong("file", "path missing"));
        }
        let rank = url.number("rank")?;
        let rank = rank.ok_or_else(|| wrong("file", "rank parameter missing"))?;
        let world_size = url.number("world_size")?;
        Ok(Opened {
            store: Box::new(FileStore::open(&url.path, world_size)?),
            rank: Rank(rank),
        })
    }

    fn refuse_again(&self, _url: &Url) -> String {
        "Unable to perform rerendezvous using file:// method".to_owned()
    }
}
