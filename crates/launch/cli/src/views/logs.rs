//! `rdzv logs`: the output of one rank of a running job.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use rdzv_agent::observe::OutputTail;

use super::client::{JobArgs, ViewError, ended};
use super::job::parse;

/// Print the output of one rank of a running job.
///
/// With c10d on a store of rdzv, the rank may be on any node of the job. The agent reads the log
/// file of the rank, so the run needs `--redirects`, `--tee` or `--collapse`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    job: JobArgs,

    /// Rank whose output to print.
    #[arg(long, value_name = "N")]
    rank: u32,

    /// Number of lines to begin with.
    #[arg(long, value_name = "N", default_value_t = 50)]
    lines: usize,

    /// Continue to print new lines until the job ends.
    #[arg(long, short)]
    follow: bool,

    /// Print stderr instead of stdout.
    #[arg(long)]
    stderr: bool,
}

pub(crate) fn run(arguments: &LogsArgs) -> ExitCode {
    ended("logs", print(arguments))
}

fn print(arguments: &LogsArgs) -> Result<(), ViewError> {
    let target = arguments.job.find()?;
    let stream = u8::from(arguments.stderr);
    let path = format!("/output?rank={}&stderr={stream}", arguments.rank);
    let mut next = format!("{path}&lines={}", arguments.lines);
    let mut has_begun = false;
    loop {
        let text = match target.get(&next) {
            // An agent that exits closes its socket, and then the connections.
            Err(_) if has_begun && target.get("/status").is_err_and(|it| it.has_exited()) => {
                return Ok(());
            }
            answer => answer?,
        };
        let tail: OutputTail = parse(text.as_bytes())
            .map_err(|error| ViewError::Answer(format!("cannot parse the output: {error}")))?;
        if let Some(error) = tail.error {
            return Err(ViewError::Answer(error));
        }
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(tail.text.as_bytes());
        if written.and_then(|()| stdout.flush()).is_err() || !arguments.follow {
            return Ok(());
        }
        has_begun = true;
        let (lines, from, pid) = (usize::MAX, tail.next, tail.pid);
        next = format!("{path}&lines={lines}&from={from}&pid={pid}&wait=1");
    }
}
