//! Why a rendezvous failed.

use rdzv_store::StoreError;
use thiserror::Error;

/// Why a rendezvous failed.
#[derive(Debug, Error)]
pub enum RendezvousError {
    /// A URL or parameter is not usable; the text is the reference's where it has one.
    #[error("{0}")]
    Argument(String),
    /// The store behind the rendezvous failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}
