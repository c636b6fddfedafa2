//! Calls that wait for their end, and how much may be in flight to a peer.
//!
//! Reading order: [`table`] (calls that wait, with their deadlines), [`credit`] (what the caller
//! keeps to), [`window`] (what the callee keeps to).

pub mod credit;
pub mod table;
pub mod window;

pub use credit::{Credit, CreditLimits};
pub use table::CallTable;
pub use window::{Share, Window};
