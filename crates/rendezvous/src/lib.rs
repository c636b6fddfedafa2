//! Rendezvous: agreeing on who takes part and in which order.

mod error;

pub use error::RendezvousError;
