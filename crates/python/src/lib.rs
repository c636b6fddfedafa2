//! Native half of the Python package `rdzv`.
//!
//! Rust does the input and output, the waiting and the bytes. `python/rdzv` has the names, the
//! pickles and the policy. Rules of this crate:
//!
//! - A call that can wait detaches from the interpreter, and polls for signals at least every 100
//!   ms (`interrupt`). The exceptions are calls that close an object, and the threads that execute
//!   arrived calls and callbacks of `rdzv.rpc`.
//! - Numbers, keys, values and timeouts from Python are checked immediately (`argument`,
//!   `timeout`).
//! - The state of Python objects is in a `handle`, which handles `close()`, forks and the end of
//!   the interpreter. Other state that outlives a call is common to the process.
//! - The classes of exceptions are Python classes (`rdzv._errors`), so that they can have two base
//!   classes and be pickled (`errors`).

mod agent;
mod argument;
mod credentials;
mod errors;
mod group;
mod handle;
mod interrupt;
mod memory;
mod rendezvous;
mod rpc;
mod store;
mod timeout;
mod url;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// Extension module `rdzv._rdzv`.
#[pymodule(gil_used = false)]
fn _rdzv(module: &Bound<'_, PyModule>) -> PyResult<()> {
    refuse_subinterpreters(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<agent::Agent>()?;
    module.add_class::<agent::Reply>()?;
    module.add_class::<rendezvous::Rendezvous>()?;
    module.add_function(wrap_pyfunction!(url::url_rendezvous, module)?)?;
    store::add_classes(module)?;
    group::add_classes(module)?;
    rpc::add_classes(module)?;
    handle::register(module)
}

/// Refuses subinterpreters.
///
/// The state of this module is common to the process, and its hooks are those of the main
/// interpreter.
fn refuse_subinterpreters(py: Python<'_>) -> PyResult<()> {
    let thread = py.import("_thread")?;
    let is_main: bool = match thread.getattr("_is_main_interpreter") {
        Ok(is_main) => is_main.call0()?.extract()?,
        // This is the way in Python 3.11.
        Err(_) => match py.import("_xxsubinterpreters") {
            Ok(interpreters) => {
                let main = interpreters.call_method0("get_main")?;
                interpreters.call_method0("get_current")?.eq(main)?
            }
            Err(_) => true,
        },
    };
    if is_main {
        Ok(())
    } else {
        Err(PyImportError::new_err(
            "rdzv cannot be used in a subinterpreter: import it in the main interpreter",
        ))
    }
}
