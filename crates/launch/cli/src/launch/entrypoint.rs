//! The command that each worker executes.
//!
//! | mode | command line of a worker |
//! |---|---|
//! | default | `python -u script args…` |
//! | `-m` | `python -u -m module args…` |
//! | `--no-python` | `program args…` |
//! | `--run-path` | `python -u -c bootstrap script args…` |

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Args;
use rdzv_agent::config::Entrypoint;
use rdzv_agent::launcher::python::{self, Interpreter};
use rdzv_rendezvous::Program;

use super::context::Context;
use crate::exit::{Raised, Refusal};
use crate::explanation::{Draft, Provenance};

/// Python code that runs the script as `__main__` with its own `sys.argv`.
///
/// It writes an error file for an uncaught exception. The code must not contain a dollar sign,
/// because arguments are templates.
const BOOTSTRAP: &str = include_str!("run_path.py");

/// Name of `--run-path` workers in failure reports, as in `torchrun`.
const RUN_PATH_NAME: &str = "run_script_path";

/// Flags for the execution of the script.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct CommandArgs {
    /// Run the script argument as a Python module (python -m)
    #[arg(short, long)]
    pub(crate) module: bool,

    /// Execute the script argument itself, without Python.
    ///
    /// A name without a slash is searched for in PATH.
    #[arg(long)]
    pub(crate) no_python: bool,

    /// Run the script as __main__ in an interpreter that records exceptions.
    ///
    /// Overrides --no-python and --module. An uncaught exception is written to the worker's error
    /// file, so the failure report shows its traceback.
    #[arg(long)]
    run_path: bool,
}

/// Properties of a launch that follow from the name of the launcher.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Called {
    /// Directory of the link named `torchrun`, if the program was started by it.
    ///
    /// The directory may contain the interpreter of an environment.
    pub(crate) beside: Option<PathBuf>,
    /// Directory of this program, which may belong to an environment.
    pub(crate) own: Option<PathBuf>,
    /// `true` if scripts get `--local-rank=N`, as from the older launcher.
    pub(crate) local_rank_argument: bool,
    /// `true` for `rdzv run`.
    ///
    /// `rdzv run` refuses unknown `--rdzv-conf` options and signals. The other launchers only warn.
    pub(crate) is_strict: bool,
}

impl CommandArgs {
    /// Returns the command of the workers, and their interpreter, if they have one.
    pub(super) fn resolve(
        &self,
        training_script: &[OsString],
        called: &Called,
        context: &Context<'_>,
    ) -> Result<(Entrypoint, Option<Interpreter>), Raised> {
        let [script, script_arguments @ ..] = training_script else {
            return Err(Raised::value_error("no script was specified"));
        };
        let mut name = script.to_string_lossy().into_owned();
        let mut words: Vec<OsString> = Vec::new();
        let mut found = None;
        let mut interpret = || -> Result<OsString, Raised> {
            let (path, _) = found.insert(interpreter(called, context)?);
            Ok(path.clone())
        };
        let program = if self.run_path {
            RUN_PATH_NAME.clone_into(&mut name);
            words.extend(["-u".into(), "-c".into(), BOOTSTRAP.into(), script.clone()]);
            interpret()?
        } else if self.no_python {
            if self.module {
                return Err(Raised::value_error(
                    "Don't use both the '--no-python' flag and the '--module' flag at the same \
                     time.",
                )
                .plainly(
                    "--no-python and --module cannot be combined, because only Python can run a \
                     module",
                ));
            }
            script.clone()
        } else {
            words.push("-u".into());
            words.extend(self.module.then(|| "-m".into()));
            words.push(script.clone());
            interpret()?
        };
        if called.local_rank_argument {
            words.push("--local-rank=${local_rank}".into());
        }
        words.extend(script_arguments.iter().cloned());
        let entrypoint = Entrypoint {
            program,
            arguments: words,
            name,
        };
        Ok((entrypoint, found))
    }
}

impl CommandArgs {
    /// Returns the identity of the workers' program.
    ///
    /// Agents without a common run id compare their identities to find out if they belong to one
    /// job. The identity of a script is the first mebibyte of its text, because its path may differ
    /// between nodes.
    pub(super) fn program(
        &self,
        training_script: &[OsString],
        has_run_id: bool,
        context: &Context<'_>,
    ) -> Program {
        let script = training_script
            .first()
            .map_or(OsStr::new(""), |script| script);
        let is_script = self.run_path || !(self.module || self.no_python);
        let text = is_script.then(|| context.machine.beginning(Path::new(script)));
        let name = script.to_string_lossy();
        match text.flatten() {
            Some(text) => Program::new(name, &text, has_run_id),
            None => {
                let last = Path::new(script).file_name().unwrap_or(script);
                Program::new(name, last.as_encoded_bytes(), has_run_id)
            }
        }
    }
}

/// Returns the modules of `--preload`, which a fork server imports.
pub(super) fn preload(
    text: Option<&str>,
    interpreter: Option<&Interpreter>,
    context: &mut Context<'_>,
) -> Result<Vec<String>, Refusal> {
    let modules = text.unwrap_or_default().split(',').map(str::trim);
    let modules = modules.filter(|module| !module.is_empty());
    let modules: Vec<String> = modules.map(str::to_owned).collect();
    if let Some(wrong) = modules.iter().find(|module| !is_module(module)) {
        let problem = format!("'{wrong}' is not the name of a Python module");
        return Err(Refusal::argument("--preload", &problem));
    }
    if interpreter.is_none() && !modules.is_empty() {
        context.warn("--preload has no effect with --no-python");
        return Ok(Vec::new());
    }
    Ok(modules)
}

/// `true` if a text is a module name as after `import`, with or without dots.
fn is_module(text: &str) -> bool {
    text.split('.').all(|word| {
        let mut letters = word.chars();
        let first = letters.next();
        first.is_some_and(|letter| letter == '_' || letter.is_alphabetic())
            && letters.all(|letter| letter == '_' || letter.is_alphanumeric())
    })
}

/// Returns the Python interpreter of the workers.
fn interpreter(called: &Called, context: &Context<'_>) -> Result<Interpreter, Raised> {
    let (link, machine) = (called.beside.as_deref(), context.machine);
    let found = python::interpreter(
        &context.environment.0,
        link,
        || {
            let own = called.own.clone()?;
            python::has_packages(&own, |path| machine.names(path)).then_some(own)
        },
        |path| machine.is_file(path),
        |path| machine.is_program(path),
    );
    found.ok_or_else(|| {
        Raised::new(
            "FileNotFoundError",
            "no Python interpreter: none in VIRTUAL_ENV and no python3 or python in PATH; activate \
             an environment, set PYTHON_EXEC, or use --no-python",
        )
        .plainly(
            "no Python interpreter: none in VIRTUAL_ENV and no python3 or python in PATH; activate \
             an environment, set PYTHON_EXEC, or use --no-python",
        )
    })
}

/// Adds the section about the command to an explanation.
///
/// The section names the interpreter or the program. Returns the origin of the mode.
pub(super) fn explain(
    draft: &mut Draft,
    entrypoint: &Entrypoint,
    preload: &[String],
    interpreter: Option<&Interpreter>,
) -> Provenance {
    draft.section("Command");
    if preload.is_empty() {
        draft.mention(&["preload"]);
    } else {
        draft.setting("imported once", "preload", preload.join(","), "");
    }
    match interpreter {
        Some((path, reason)) => {
            let detected = Provenance::detected(reason);
            draft.line("interpreter", path.to_string_lossy(), detected);
        }
        None => {
            let switch = draft.given("no_python").without_value();
            draft.line("program", entrypoint.program.to_string_lossy(), switch);
        }
    }
    let modes = ["run_path", "no_python", "module"];
    draft.mention(&modes);
    match modes.into_iter().find(|id| draft.is_given(id)) {
        Some(mode) => draft.given(mode).without_value(),
        None => Provenance::decided("a script, run by the interpreter"),
    }
}
