//! The functions that a worker offers.

pub(crate) mod handler;
pub(crate) mod methods;
