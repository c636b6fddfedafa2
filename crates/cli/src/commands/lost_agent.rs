//! What the keeper says in the place of an agent that was killed, and so could not say it itself.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rdzv_agent::host;
use rdzv_core::signal;

use super::conclude::{Report, write_error_file};
use crate::args::{Parsed, Program, parse};
use crate::launch::{Environment, ThisHost};
use crate::report::Document;
use crate::terminal::complain;

/// Signals by which an agent does not end of its own will: others may be handled, and then it has
/// said everything before it ended by them.
const FATAL: [&str; 7] = [
    "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS",
];

/// Says so if the agent was killed, on stderr and in the files that were asked for.
pub(super) fn explain(called: &OsStr, status: ExitStatus) {
    let killed_by = status
        .signal()
        .and_then(|number| Some((number, signal::name(number)?)))
        .filter(|(_, name)| FATAL.contains(name));
    let Some((number, name)) = killed_by else {
        return;
    };
    let text = format!("the agent was ended by {name}; its workers have been killed with it");
    complain(&format!("rdzv: {text}"));
    let environment = Environment(std::env::vars_os().collect());
    write_error_file(&environment, &format!("RuntimeError: {text}"));
    let words = std::env::args_os().skip(1).collect();
    if let Program::Launch(launcher, words) = Program::of(called, words)
        && let Ok(Parsed::Run(arguments, _)) = parse(launcher, &words, &environment.0)
        && let Ok(report) = Report::open(&arguments.run, &ThisHost)
    {
        let arguments = arguments.run;
        let host = host::full_name();
        let title = arguments.training_script.first().map(OsString::as_os_str);
        let title = title.map(OsStr::to_string_lossy).unwrap_or_default();
        let code = u8::try_from(128 + number).unwrap_or(1);
        report.write(&Document::of_lost_agent(
            arguments.rendezvous.rdzv_id.as_deref(),
            &title,
            &host,
            &text,
            code,
        ));
    }
}
