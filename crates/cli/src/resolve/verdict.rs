//! What is left of a run when it is over: the report file, and whose exit code.

use std::path::PathBuf;

use super::Machine;
use crate::args::verdict::VerdictArgs;
use crate::exit::{ExitCodes, Refusal};

/// What the user wants to be left with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// Where the report goes.
    pub(crate) report: Option<PathBuf>,
    /// Whose exit code counts.
    pub(crate) exit_codes: ExitCodes,
}

/// Reads the flags. Decided before everything else, so that a launch that is refused can be
/// reported too.
pub(crate) fn wishes(arguments: &VerdictArgs, machine: &dyn Machine) -> Result<Wishes, Refusal> {
    let exit_codes = match arguments.exit_code.as_str() {
        "launcher" => ExitCodes::Launcher,
        "worker" => ExitCodes::Worker,
        other => {
            return Err(Refusal::Usage(format!(
                "argument --exit-code: '{other}' is neither launcher nor worker"
            )));
        }
    };
    let report = arguments
        .report
        .as_ref()
        .filter(|path| !path.is_empty())
        .map(|path| machine.working_directory().join(path));
    Ok(Wishes { report, exit_codes })
}
