//! Calls that have not ended, and limits of calls in flight to a peer.
//!
//! Reading order: [`table`] (waiting calls with their deadlines), [`credit`] (limits at the
//! caller), [`window`] (limits at the callee).

pub mod credit;
pub mod table;
pub mod window;

pub use credit::{Credit, CreditLimits};
pub use table::CallTable;
pub use window::{Share, Window};
