//! What each worker executes.
//!
//! | mode | command line of a worker |
//! |---|---|
//! | default | `python -u script args…` |
//! | `-m` | `python -u -m module args…` |
//! | `--no-python` | `program args…` |
//! | `--run-path` | `python -u -c bootstrap script args…` |

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rdzv_agent::Entrypoint;
use rdzv_core::env::{PYTHON_EXEC, VIRTUAL_ENV};

use super::{Called, Environment, Machine};
use crate::args::RunArgs;
use crate::exit::Raised;

/// Runs the script as `__main__` with its own `sys.argv`, and leaves an error file if an exception
/// leaves it. It must not contain a dollar sign: arguments are templates.
const BOOTSTRAP: &str = include_str!("run_path.py");

/// What failure reports call the workers of `--run-path`: the reference's name for them.
const RUN_PATH_NAME: &str = "run_script_path";

/// The interpreter of the workers, and why that one.
pub(super) type Interpreter = (OsString, String);

/// Builds the command of the workers; beside it, the interpreter if it has one.
pub(super) fn build(
    arguments: &RunArgs,
    called: &Called,
    environment: &Environment,
    machine: &dyn Machine,
) -> Result<(Entrypoint, Option<Interpreter>), Raised> {
    let [script, script_arguments @ ..] = arguments.training_script.as_slice() else {
        return Err(Raised::value_error("there is no script to run"));
    };
    let mut name = script.to_string_lossy().into_owned();
    let mut words: Vec<OsString> = Vec::new();
    let mut found = None;
    let mut python = || -> Result<OsString, Raised> {
        let (path, reason) = interpreter(called, environment, machine)?;
        found = Some((path.clone(), reason));
        Ok(path)
    };
    let program = if arguments.run_path {
        RUN_PATH_NAME.clone_into(&mut name);
        words.extend(["-u".into(), "-c".into(), BOOTSTRAP.into(), script.clone()]);
        python()?
    } else if arguments.no_python {
        if arguments.module {
            return Err(Raised::value_error(
                "Don't use both the '--no-python' flag and the '--module' flag at the same time.",
            ));
        }
        script.clone()
    } else {
        words.push("-u".into());
        words.extend(arguments.module.then(|| "-m".into()));
        words.push(script.clone());
        python()?
    };
    words.extend(
        called
            .local_rank_argument
            .then(|| "--local-rank=${local_rank}".into()),
    );
    words.extend(script_arguments.iter().cloned());
    let entrypoint = Entrypoint {
        program,
        arguments: words,
        name,
    };
    Ok((entrypoint, found))
}

/// The Python of the workers: `PYTHON_EXEC`, else that of the environment that the user is in.
///
/// A link named `torchrun` in an environment belongs to that environment even when it is not
/// active, as the real one would. One in a common directory such as `/usr/local/bin` belongs to
/// none, so there the active environment comes first.
fn interpreter(
    called: &Called,
    environment: &Environment,
    machine: &dyn Machine,
) -> Result<Interpreter, Raised> {
    if let Some(given) = environment.0.get(OsStr::new(PYTHON_EXEC)) {
        return Ok((given.clone(), format!("{PYTHON_EXEC} is set")));
    }
    let beside = called.beside.as_deref();
    let own = beside.filter(|directory| machine.is_file(&directory.join("../pyvenv.cfg")));
    let active = environment
        .filled(VIRTUAL_ENV)
        .map(|root| Path::new(&root).join("bin"));
    let candidates = [
        (own, "of the environment that the link `torchrun` is in"),
        (active.as_deref(), "VIRTUAL_ENV names its environment"),
        (beside, "beside the link `torchrun`"),
    ];
    for (directory, reason) in candidates {
        if let Some(program) = directory.and_then(|directory| python_in(directory, machine)) {
            return Ok((program.into_os_string(), reason.to_owned()));
        }
    }
    let path = environment.text("PATH").unwrap_or_default();
    for name in ["python3", "python"] {
        let programs = std::env::split_paths(&path).map(|directory| directory.join(name));
        let mut programs = programs.filter(|program| machine.is_program(program));
        if let Some(program) = programs.next() {
            let reason = format!("the first {name} in PATH");
            return Ok((program.into_os_string(), reason));
        }
    }
    Err(Raised::new(
        "FileNotFoundError",
        "no Python interpreter: none in VIRTUAL_ENV and no python3 or python in PATH; activate an \
         environment, set PYTHON_EXEC, or use --no-python",
    ))
}

fn python_in(directory: &Path, machine: &dyn Machine) -> Option<PathBuf> {
    ["python3", "python"]
        .into_iter()
        .map(|name| directory.join(name))
        .find(|program| machine.is_program(program))
}
