//! Entry point of workers.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::SpecError;
use crate::config::Entrypoint;
use crate::python::interpreter as interpreter_in;

/// Program, script, module or function that each worker executes.
///
/// In the arguments, `$local_rank` and `${local_rank}` become the worker's local rank and `$$`
/// becomes `$`, as on the command line.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerEntrypoint {
    /// A program.
    Command {
        /// Program; searched for in `PATH` if it contains no slash.
        program: OsString,
        /// Arguments of the program.
        arguments: Vec<OsString>,
    },
    /// A Python script, run as `python -u script arguments…`.
    Script {
        /// Path of the script.
        path: PathBuf,
        /// Arguments of the script.
        arguments: Vec<OsString>,
    },
    /// A Python module, run as `python -u -m module arguments…`.
    Module {
        /// Name of the module.
        name: String,
        /// Arguments of the module.
        arguments: Vec<OsString>,
    },
    /// A function of this program, run in a copy of it.
    /// See [`function`](super::function).
    Function {
        /// Name under which the function is registered.
        name: String,
        /// Argument of the function, as JSON.
        input: Value,
        /// Arguments of the program's copy.
        arguments: Vec<OsString>,
    },
}

impl WorkerEntrypoint {
    /// Creates an entry point that runs a program without arguments.
    pub fn command(program: impl Into<OsString>) -> Self {
        Self::Command {
            program: program.into(),
            arguments: Vec::new(),
        }
    }

    /// Creates an entry point that runs a Python script without arguments.
    ///
    /// The interpreter is `PYTHON_EXEC` if that variable is set. Otherwise, it is the Python in
    /// `VIRTUAL_ENV`. If neither exists, it is `python3` or `python` in `PATH`.
    pub fn script(path: impl Into<PathBuf>) -> Self {
        Self::Script {
            path: path.into(),
            arguments: Vec::new(),
        }
    }

    /// Creates an entry point that runs a Python module without arguments.
    /// The interpreter is selected in the same way as for [`WorkerEntrypoint::script`].
    pub fn module(name: impl Into<String>) -> Self {
        Self::Module {
            name: name.into(),
            arguments: Vec::new(),
        }
    }

    /// Creates an entry point that runs the function registered as `name`.
    /// Each worker calls the function with `input`.
    ///
    /// # Errors
    ///
    /// Returns the error of the conversion of `input` to JSON.
    pub fn function<A: Serialize>(
        name: impl Into<String>,
        input: &A,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self::Function {
            name: name.into(),
            input: serde_json::to_value(input)?,
            arguments: Vec::new(),
        })
    }

    /// Makes workers run one test, in a program that `cargo test` built.
    /// That test consists only of
    /// [`WorkerFunctions::run_if_worker`](super::WorkerFunctions::run_if_worker). `test` is the
    /// full name of the test, such as `tests::worker`.
    #[must_use]
    pub fn in_test(self, test: &str) -> Self {
        self.args([test, "--exact", "--nocapture", "--test-threads=1"])
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(self, argument: impl Into<OsString>) -> Self {
        self.args([argument])
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, more: impl IntoIterator<Item = A>) -> Self {
        let (Self::Command { arguments, .. }
        | Self::Script { arguments, .. }
        | Self::Module { arguments, .. }
        | Self::Function { arguments, .. }) = &mut self;
        arguments.extend(more.into_iter().map(Into::into));
        self
    }

    /// Returns the name in reports: program, script, module or function.
    pub fn name(&self) -> String {
        match self {
            Self::Command { program, .. } => program.to_string_lossy().into_owned(),
            Self::Script { path, .. } => path.display().to_string(),
            Self::Module { name, .. } | Self::Function { name, .. } => name.clone(),
        }
    }

    /// Returns the command of this entry point in the given environment.
    pub(super) fn resolve(
        &self,
        environment: &BTreeMap<OsString, OsString>,
    ) -> Result<Entrypoint, SpecError> {
        let name = self.name();
        let (program, mut words, arguments) = match self {
            Self::Command { program, arguments } => (program.clone(), Vec::new(), arguments),
            Self::Script { path, arguments } => {
                let words = vec!["-u".into(), path.clone().into_os_string()];
                (interpreter(environment)?, words, arguments)
            }
            Self::Module { name, arguments } => {
                let words = vec!["-u".into(), "-m".into(), name.into()];
                (interpreter(environment)?, words, arguments)
            }
            Self::Function { arguments, .. } => {
                let program = std::env::current_exe().map_err(SpecError::OwnProgram)?;
                (program.into_os_string(), Vec::new(), arguments)
            }
        };
        words.extend(arguments.iter().cloned());
        Ok(Entrypoint {
            program,
            arguments: words,
            name,
        })
    }
}

fn interpreter(environment: &BTreeMap<OsString, OsString>) -> Result<OsString, SpecError> {
    let found = interpreter_in(environment, None, || None, Path::is_file, Path::is_file);
    found.map(|(program, _)| program).ok_or(SpecError::NoPython)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(entrypoint: &WorkerEntrypoint) -> Vec<String> {
        let environment = BTreeMap::from([("PYTHON_EXEC".into(), "/py".into())]);
        let resolved = entrypoint.resolve(&environment).unwrap();
        let mut words = vec![resolved.program];
        words.extend(resolved.arguments);
        words
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect()
    }

    #[test]
    fn commands_scripts_and_modules_are_run_as_on_the_command_line() {
        let command = WorkerEntrypoint::command("echo").arg("a").args(["b", "c"]);
        assert_eq!(words(&command), ["echo", "a", "b", "c"]);
        let script = WorkerEntrypoint::script("train.py").arg("--x");
        assert_eq!(words(&script), ["/py", "-u", "train.py", "--x"]);
        let module = WorkerEntrypoint::module("pkg.train").arg("--x");
        assert_eq!(words(&module), ["/py", "-u", "-m", "pkg.train", "--x"]);
        assert_eq!(module.name(), "pkg.train");
    }

    #[test]
    fn a_function_runs_in_a_copy_of_this_program() {
        let function = WorkerEntrypoint::function("double", &21).unwrap();
        let own = std::env::current_exe().unwrap();
        assert_eq!(words(&function), [own.to_str().unwrap()]);
        let in_test = words(&function.in_test("tests::worker"));
        assert_eq!(in_test[1..3], ["tests::worker", "--exact"]);
    }
}
