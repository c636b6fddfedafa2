//! Calls that wait for their end, and how much may be in flight to a peer.
//!
//! Reading order: [`deadlines`] (which comes first, and when the driver has to wake up for it),
//! [`table`] (calls that wait, with their deadlines), [`pending`] (the same for calls that this
//! worker numbers), [`credit`] (what the caller keeps to), [`window`] (what the callee keeps to).

pub mod credit;
pub mod deadlines;
pub mod pending;
pub mod table;
pub mod window;

pub use credit::{Credit, CreditLimits};
pub use deadlines::Deadlines;
pub use pending::{Begun, Pending};
pub use table::CallTable;
pub use window::{Share, Window, WindowLimits};
