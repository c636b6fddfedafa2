//! The demo itself: starts the workers under the agent and lets the timeline speak.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rdzv_agent::{
    AgentEvent, Entrypoint, LaunchPlan, LogBase, LogPlan, RankSelection, StreamSelection,
};
use rdzv_core::ident::RunId;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::args::DemoArgs;
use super::progress::{Reporter, Reports};
use super::timeline::{Happened, Timeline, Wish};
use super::words;
use crate::exit::Exit;
use crate::terminal::complain;

/// Runs the demo; the process is the agent of a keeper.
pub(super) fn run(args: &DemoArgs) -> ExitCode {
    show(args).unwrap_or_else(|error| {
        complain(&format!("rdzv demo: {error:#}"));
        Exit::Failure.into()
    })
}

fn show(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let directory = TempDir::with_prefix("rdzv-demo-").context("make a temporary directory")?;
    let reports = Reports::open().context("open a socket for reports")?;
    let plan = plan(args, directory.path(), reports.name())?;
    let last_word = Reporter::connect(reports.name()).context("reach the own socket")?;
    say(&words::opening(args.workers, !args.no_kill));

    let (tell, told) = mpsc::channel();
    let started = Instant::now();
    let timeline = Timeline::new(args.workers, !args.no_kill);
    let narrator = thread::spawn(move || narrate(timeline, &told));
    let listener = thread::spawn({
        let tell = tell.clone();
        move || listen(&reports, started, &tell)
    });
    let outcome = rdzv_agent::run(plan, &mut |event: &AgentEvent| {
        // The narrator ends last; if it has panicked, the run goes on without a story.
        let _ = tell.send((started.elapsed(), Happened::Agent(event.clone())));
    });
    drop(tell);
    last_word.end().context("end the reports")?;
    let listened = listener.join();
    let timeline = narrator
        .join()
        .ok()
        .context("tell the story (this is a bug)")?;
    listened
        .ok()
        .context("hear the reports (this is a bug)")??;

    let verdict = timeline.verdict(&outcome);
    if verdict.is_err() {
        show_logs(directory.path());
    }
    let removed = directory.close().context("remove the temporary directory");
    Ok(match verdict {
        Ok(finished) => {
            removed?;
            say(&words::closing(&timeline, finished));
            Exit::Success.into()
        }
        Err(reason) => {
            complain(&words::failure(&reason, &outcome));
            Exit::Failure.into()
        }
    })
}

type Told = (Duration, Happened);

/// Passes reports on to the timeline until there are no more.
fn listen(reports: &Reports, started: Instant, tell: &mpsc::Sender<Told>) -> io::Result<()> {
    while let Some(progress) = reports.next()? {
        let _ = tell.send((started.elapsed(), Happened::Worker(progress)));
    }
    Ok(())
}

/// Grants the timeline its wishes, as things happen.
fn narrate(mut timeline: Timeline, told: &mpsc::Receiver<Told>) -> Timeline {
    for (at, happened) in told {
        for wish in timeline.handle(at, happened) {
            match wish {
                Wish::Line(line) => say(&line),
                Wish::Kill(pid) => kill(pid),
            }
        }
    }
    timeline
}

/// A reader that has gone away is no reason to leave the workers alone.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // If it is gone already, the timeline will notice that it did not die of this.
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn plan(args: &DemoArgs, directory: &Path, reports: &str) -> anyhow::Result<LaunchPlan> {
    let words: [OsString; 5] = [
        "demo-worker".into(),
        "--directory".into(),
        directory.into(),
        "--reports".into(),
        reports.into(),
    ];
    let program = std::env::current_exe().context("find this program")?;
    let both = StreamSelection {
        stdout: true,
        stderr: true,
    };
    let entrypoint = Entrypoint {
        program: program.into(),
        arguments: words.into(),
        name: "rdzv demo-worker".to_owned(),
    };
    Ok(LaunchPlan {
        run_id: RunId::new("demo"),
        local_world_size: args.workers,
        max_restarts: 1,
        shutdown_timeout: Duration::from_secs(5),
        local_addr: Some("127.0.0.1".to_owned()),
        logs: LogPlan {
            redirects: RankSelection::All(both),
            console_ranks: Some(BTreeSet::new()),
            ..LogPlan::new(LogBase::Directory(directory.join("logs")))
        },
        environment: std::env::vars_os().collect(),
        rendezvous_backend: "static".to_owned(),
        ..LaunchPlan::new(entrypoint)
    })
}

/// Shows what the workers had to say, for whom it did not go well.
fn show_logs(directory: &Path) {
    let mut folders = vec![directory.join("logs")];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path)
                && !text.is_empty()
            {
                let name = path.strip_prefix(directory).unwrap_or(&path);
                complain(&format!("{}:\n{text}", name.display()));
            }
        }
    }
}
