//! Worker side: detects that this process is a worker, and calls its function.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io::Write as _;
use std::os::unix::process::parent_id;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{exit, id};
use std::{env, fs, io};

use rdzv_core::env::{RDZV_FUNCTION_CALL, TORCHELASTIC_ERROR_FILE};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::call::{Request, agent_of, request_path, return_path};
use crate::clock::wall;
use crate::error_file::own;

type Function = Box<dyn Fn(Value) -> Result<Value, String>>;

/// Functions of a program that can be workers, by name.
#[derive(Default)]
pub struct WorkerFunctions(BTreeMap<String, Function>);

impl fmt::Debug for WorkerFunctions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

impl WorkerFunctions {
    /// Returns an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a function; its argument and return value are passed as JSON.
    /// The environment has the worker's ranks (`RANK`, `WORLD_SIZE`, `MASTER_ADDR` and so on).
    ///
    /// An error or a panic is the failure of the worker, with its text as the cause.
    #[must_use]
    pub fn register<A, R, E>(
        mut self,
        name: &str,
        function: impl Fn(A) -> Result<R, E> + 'static,
    ) -> Self
    where
        A: DeserializeOwned,
        R: Serialize,
        E: Display,
    {
        let called = move |input: Value| {
            let input = serde_json::from_value(input).map_err(|error| {
                format!("the input does not match the function's argument: {error}")
            })?;
            let value = function(input).map_err(|error| error.to_string())?;
            serde_json::to_value(value)
                .map_err(|error| format!("cannot serialise the return value: {error}"))
        };
        self.0.insert(name.to_owned(), Box::new(called));
        self
    }

    /// In a worker, calls its function and exits.
    /// In any other process, does nothing.
    ///
    /// Call this method first in `main`, before the program has threads, output or open files that
    /// workers should not have.
    pub fn run_if_worker(&self) {
        let Some(directory) = env::var_os(RDZV_FUNCTION_CALL).map(PathBuf::from) else {
            return;
        };
        // A process that a worker starts inherits the variable, but is not a worker.
        if agent_of(&directory) != Some(parent_id()) {
            return;
        }
        let request = match request(&directory) {
            Ok(request) => request,
            Err(error) => fail(&format!("{}: {error}", directory.display())),
        };
        match self.call(request) {
            Ok(value) => match leave(&directory, &value) {
                Ok(()) => end(0),
                Err(error) => fail(&format!("cannot write the return value: {error}")),
            },
            Err(text) => fail(&text),
        }
    }

    fn call(&self, request: Request) -> Result<Value, String> {
        let name = request.function;
        let Some(function) = self.0.get(&name) else {
            return Err(format!(
                "function '{name}' is not registered, only {self:?}: register it and call \
                 `run_if_worker` at the start of this program"
            ));
        };
        match catch_unwind(AssertUnwindSafe(|| function(request.input))) {
            Ok(result) => result,
            Err(payload) => Err(format!("'{name}' panicked: {}", text_of(&*payload))),
        }
    }
}

fn request(directory: &Path) -> io::Result<Request> {
    let text = fs::read(request_path(directory))?;
    Ok(serde_json::from_slice(&text)?)
}

/// Writes the value completely or not at all.
fn leave(directory: &Path, value: &Value) -> io::Result<()> {
    let path = return_path(directory, id());
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, serde_json::to_vec(value)?)?;
    fs::rename(unfinished, path)
}

fn text_of(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("with a payload that is not a string")
}

/// Writes an error file, prints the error on stderr, and exits with 1.
/// The file has the form of those that torchelastic's error recorders write.
fn fail(text: &str) -> ! {
    let _ = writeln!(io::stderr(), "{text}");
    if let Some(path) = env::var_os(TORCHELASTIC_ERROR_FILE).filter(|path| !path.is_empty())
        && let Err(error) = fs::write(&path, own(text, wall()).to_string())
    {
        let _ = writeln!(io::stderr(), "{}: {error}", Path::new(&path).display());
    }
    end(1)
}

fn end(code: i32) -> ! {
    let _ = io::stdout().flush();
    exit(code)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(function: &str, input: Value) -> Result<Value, String> {
        let functions = WorkerFunctions::new()
            .register("half", |number: u32| match number % 2 {
                0 => Ok(number / 2),
                _ => Err(format!("{number} is odd")),
            })
            .register("fall", |(): ()| -> Result<(), String> {
                panic!("over {}", 1)
            });
        functions.call(Request {
            function: function.to_owned(),
            input,
        })
    }

    #[test]
    fn values_errors_and_panics_are_carried_over() {
        assert_eq!(call("half", json!(8)), Ok(json!(4)));
        assert_eq!(call("half", json!(7)), Err("7 is odd".to_owned()));
        assert_eq!(
            call("fall", json!(null)),
            Err("'fall' panicked: over 1".to_owned())
        );
    }

    #[test]
    fn a_wrong_name_or_input_says_what_there_is() {
        let unknown = call("third", json!(9)).unwrap_err();
        assert!(
            unknown.contains("'third'") && unknown.contains("half"),
            "{unknown}"
        );
        let wrong = call("half", json!("x")).unwrap_err();
        assert!(
            wrong.contains("does not match the function's argument"),
            "{wrong}"
        );
    }
}
