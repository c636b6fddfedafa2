//! Workers that refer to one another's values: the machine of `rdzv_rpc_proto::rref`.
//!
//! ```text
//!   worker ──batches──► lost, doubled, late, in any order ──► worker
//!   worker ──calls────► lost, late, given up, thrown away ──► worker     with references inside
//! ```
//!
//! Workers make values, have others make them, pass references on, drop them and ask for values.
//! They are killed, leave, start again as another member, and lose one another without noticing at
//! once.
//!
//! | file | what |
//! |---|---|
//! | [`plan`] | what a seed lets happen |
//! | [`world`] | virtual time, and what happens in it |
//! | `outputs.rs` | what the machines of workers want done |
//! | `calls.rs` | what workers do, and the calls that carry references |
//! | `faults.rs` | death, return, and cut lines |
//! | [`model`] | who holds what, and what must be true of it |
//!
//! Invariants: **INV-P2** a value is not freed while somebody holds it who can still know of its
//! owner; this holds for references on their way as well. **INV-P3** a value is freed once, and
//! asked for in vain only if **INV-P2** allows it to be freed. **INV-P4** when all handles are
//! dropped, or all workers shut down, nothing is left anywhere, and nothing was made that was not
//! freed. **INV-P5** without lost messages and cut lines, no live worker is declared lost.

mod calls;
mod faults;
pub mod model;
mod outputs;
pub mod plan;
pub mod world;

use crate::Violation;
use crate::trace::Trace;

use world::{Report, World};

/// Runs the plan of a seed to its end.
pub fn run(seed: u64, trace: Trace) -> Result<Report, Violation> {
    World::new(plan::Plan::of_seed(seed), seed, trace).run()
}
