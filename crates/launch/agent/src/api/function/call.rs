//! Directory of one call: argument and return values of the function.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rdzv_core::env::RDZV_FUNCTION_CALL;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::RunError;
use crate::private_directory::unique;

/// Prefix of the name of a call's directory; the agent's process id follows.
const PREFIX: &str = "rdzv_call";

/// Content of `call.json`, which the agent writes for its workers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) function: String,
    pub(super) input: Value,
}

/// Agent's side of a call; dropping it removes the directory.
#[derive(Debug)]
pub(in super::super) struct Call {
    function: String,
    directory: PathBuf,
}

impl Call {
    /// Writes the argument of the function into a new directory.
    pub(in super::super) fn prepare(function: &str, input: &Value) -> Result<Self, RunError> {
        let name = format!("{PREFIX}_{}", std::process::id());
        let directory = unique(&crate::host::own_temporary_directory(), &name)
            .map_err(failed(function, "cannot create a directory for the call"))?;
        let call = Self {
            function: function.to_owned(),
            directory,
        };
        let request = Request {
            function: function.to_owned(),
            input: input.clone(),
        };
        let text = serde_json::to_vec(&request)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(request_path(&call.directory), text));
        text.map_err(failed(function, "cannot write the input"))?;
        Ok(call)
    }

    /// Returns the environment variable that names the directory to workers.
    pub(in super::super) fn variable(&self) -> (OsString, OsString) {
        (RDZV_FUNCTION_CALL.into(), self.directory.clone().into())
    }

    /// Returns the value of one worker; `None` if the worker returned nothing.
    pub(in super::super) fn returned(&self, pid: u32) -> Result<Option<Value>, RunError> {
        let text = match fs::read(return_path(&self.directory, pid)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(failed(&self.function, "cannot read the return value"))?,
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(io::Error::from)
            .map_err(failed(&self.function, "cannot parse the return value"))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            tracing::debug!("cannot remove {}: {error}", self.directory.display());
        }
    }
}

pub(super) fn request_path(directory: &Path) -> PathBuf {
    directory.join("call.json")
}

/// Returns the path of the file in which a worker stores its return value.
pub(super) fn return_path(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("{pid}.json"))
}

/// Returns the process id of the agent that created this directory.
/// Only children of that agent are its workers.
pub(super) fn agent_of(directory: &Path) -> Option<u32> {
    let name = directory.file_name()?.to_str()?.strip_prefix(PREFIX)?;
    name.split('_').nth(1)?.parse().ok()
}

fn failed(function: &str, what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    let function = function.to_owned();
    move |error| RunError::Function {
        function,
        what: format!("{what}: {error}"),
    }
}
