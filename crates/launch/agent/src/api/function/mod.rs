//! Functions of this program as workers, in a copy of the program.
//! Arguments and return values are passed as JSON.
//!
//! A worker is a new process of this executable; no worker is a fork without a new program image.
//! The environment variable `RDZV_FUNCTION_CALL` makes the process call a function instead of
//! running the program.
//!
//! ```text
//!   agent                                        worker: the same executable
//!     call.json {function, input} ─────────────►   run_if_worker: finds its function, calls it
//!     ⟨pid⟩.json  ◄──────────────────────────────  Ok(value)
//!     error file  ◄──────────────────────────────  Err(text) or a panic; exits with 1
//! ```
//!
//! A program enables it with one line, before it does anything else:
//!
//! ```standalone_crate
//! use rdzv_agent::api::{LaunchConfig, WorkerEntrypoint, WorkerFunctions, launch};
//!
//! fn square(number: i64) -> Result<i64, String> {
//!     number.checked_mul(number).ok_or_else(|| format!("{number} is too large"))
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     WorkerFunctions::new().register("square", square).run_if_worker();
//!     // From here on this is the program, and not one of its workers.
//!     let entrypoint = WorkerEntrypoint::function("square", &12)?;
//!     let values = launch(&LaunchConfig::new(1, 4), entrypoint)?;
//!     assert!(values.values().all(|value| *value == 144));
//!     Ok(())
//! }
//! ```
//!
//! In a program made by `cargo test`, this line is a separate test. The entry point names that test
//! ([`WorkerEntrypoint::in_test`](super::WorkerEntrypoint::in_test)):
//!
//! ```ignore
//! #[test]
//! fn worker() {
//!     functions().run_if_worker(); // does nothing in a run of the tests
//! }
//!
//! #[test]
//! fn squares() {
//!     let entrypoint = WorkerEntrypoint::function("square", &12).unwrap().in_test("worker");
//!     // …
//! }
//! ```

mod call;
mod registry;

pub(super) use call::Call;
pub use registry::WorkerFunctions;
