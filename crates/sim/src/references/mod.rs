//! Workers that refer to each other's values.
//!
//! They use the machine of `rdzv_rpc_proto::rref`.
//!
//! ```text
//!   worker ──batches──► lost, doubled, late, in any order ──► worker
//!   worker ──calls────► lost, late, given up, thrown away ──► worker     with references inside
//! ```
//!
//! Workers create values, let others create values, pass references on, drop them, and fetch
//! values. They are killed, leave, restart as another member, and lose each other without an
//! immediate notice.
//!
//! | file | content |
//! |---|---|
//! | [`plan`] | the events that a seed allows |
//! | [`world`] | virtual time and its events |
//! | `outputs.rs` | the outputs of the workers' machines |
//! | `calls.rs` | operations of workers, and the calls that carry references |
//! | `faults.rs` | deaths, returns, and cut lines |
//! | [`model`] | the holders of all references, and their invariants |
//!
//! Invariants: **INV-P2** A value is not freed while a worker holds a reference and can still learn
//! of the owner. This also holds for references on their way. **INV-P3** A value is freed once, and
//! a fetch fails only if **INV-P2** allows the value to be freed. **INV-P4** When all handles are
//! dropped, or all workers shut down, nothing is left anywhere, and every value that was created
//! was freed. **INV-P5** Without lost messages and cut lines, no live worker is declared lost.

mod calls;
mod faults;
pub mod model;
mod outputs;
pub mod plan;
pub mod world;

use crate::Result;
use crate::trace::Trace;

use world::{Report, World};

/// Runs the plan of a seed to its end.
pub fn run(seed: u64, trace: Trace) -> Result<Report> {
    World::new(plan::Plan::of_seed(seed), seed, trace).run()
}
