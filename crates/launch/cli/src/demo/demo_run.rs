//! `rdzv demo`: runs the workers under the agent, and prints the timeline.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rdzv_agent::config::{Entrypoint, LogBase, LogPlan, RankSelection, StreamSelection};
use rdzv_agent::{AgentConfig, AgentEvent, Outcome};
use rdzv_console::line::headed;
use rdzv_console::{Line, LineRole};
use rdzv_core::ident::RunId;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::progress::{Finished, Reporter, Reports};
use super::timeline::{Action, Observation, Timeline, how_it_ended};
use crate::exit::Exit;
use crate::terminal::{Form, complain};

/// Default number of workers.
const DEFAULT_WORKERS: u32 = 4;

/// Show a training run that continues after one of its processes is killed.
///
/// The demo needs no Python, no server and no network. It takes about two seconds and leaves no
/// files behind. The processes train one small model together under the agent of `rdzv run`, with
/// `--max-restarts 1`. The exit code is 0 if everything happened as expected. LOGLEVEL=INFO shows
/// the agent's log.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DemoArgs {
    /// Number of worker processes.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_WORKERS,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,

    /// Kill no worker. The final loss is bit-for-bit the same.
    #[arg(long)]
    no_kill: bool,
}

/// Runs the demo. This process is the agent of a keeper.
pub(crate) fn run(args: &DemoArgs) -> ExitCode {
    show(args).unwrap_or_else(|error| {
        complain(&format!("rdzv demo: {error:#}"));
        Exit::Failure.into()
    })
}

fn show(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let directory =
        TempDir::with_prefix("rdzv-demo-").context("cannot create a temporary directory")?;
    let reports = Reports::open().context("cannot open a socket for reports")?;
    let plan = plan(args, directory.path(), reports.name())?;
    let own_reporter =
        Reporter::connect(reports.name()).context("cannot connect to the report socket")?;
    let opening = opening(args.workers, !args.no_kill);
    show_line(LineRole::Plain, "", &opening, Form::of_stdout());
    say("");

    let (sender, observations) = mpsc::channel();
    let started = Instant::now();
    let timeline = Timeline::new(args.workers, !args.no_kill);
    let no_thread = "cannot start a thread";
    let printer = thread::Builder::new()
        .spawn(move || print_timeline(timeline, &observations))
        .context(no_thread)?;
    let receiver = thread::Builder::new()
        .spawn({
            let sender = sender.clone();
            move || receive(&reports, started, &sender)
        })
        .context(no_thread)?;
    let outcome = rdzv_agent::run(plan, &mut |event: &AgentEvent| {
        // The printer ends last. If it has panicked, the run continues without it.
        let _ = sender.send((started.elapsed(), Observation::Agent(event.clone())));
    });
    drop(sender);
    own_reporter.end().context("cannot end the reports")?;
    let received = receiver.join();
    let timeline = printer
        .join()
        .ok()
        .context("cannot show the timeline (this is a bug)")?;
    received
        .ok()
        .context("cannot receive the reports (this is a bug)")??;

    let verdict = timeline.verdict(&outcome);
    if verdict.is_err() {
        show_logs(directory.path());
    }
    let removed = directory
        .close()
        .context("cannot remove the temporary directory");
    Ok(match verdict {
        Ok(finished) => {
            removed?;
            closing(&timeline, finished, Form::of_stdout());
            Exit::Success.into()
        }
        Err(reason) => {
            complain(&failure(&reason, &outcome));
            Exit::Failure.into()
        }
    })
}

/// Observation with its time since the start.
type Timed = (Duration, Observation);

/// Passes reports to the timeline until the last one.
fn receive(reports: &Reports, started: Instant, sender: &mpsc::Sender<Timed>) -> io::Result<()> {
    while let Some(progress) = reports.next()? {
        let _ = sender.send((started.elapsed(), Observation::Worker(progress)));
    }
    Ok(())
}

/// Passes observations to the timeline, and performs its actions.
fn print_timeline(mut timeline: Timeline, observations: &mpsc::Receiver<Timed>) -> Timeline {
    let form = Form::of_stdout();
    for (at, observation) in observations {
        for action in timeline.handle(at, observation) {
            match action {
                Action::Print(role, head, text) => show_line(role, &head, &text, form),
                Action::Kill(pid) => kill(pid),
            }
        }
    }
    timeline
}

/// Prints a line. If the reader has exited, the workers still need their agent.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Shows a line of the timeline.
///
/// The head has the colour of the role. The text follows it, wrapped.
fn show_line(role: LineRole, head: &str, text: &str, form: Form) {
    for line in headed(role, head, text, form.width) {
        say(&line.painted(form.is_coloured));
    }
}

/// Shows sentences below a title, wrapped.
fn show_block(title: &str, sentences: &[String], form: Form) {
    say(&Line::new(LineRole::Advice, title).painted(form.is_coloured));
    for sentence in sentences {
        show_line(LineRole::Plain, "  ", sentence, form);
    }
}

fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // If the process has already exited, the timeline reports that SIGKILL was not the cause.
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn plan(args: &DemoArgs, directory: &Path, reports: &str) -> anyhow::Result<AgentConfig> {
    let words: [OsString; 5] = [
        "demo-worker".into(),
        "--directory".into(),
        directory.into(),
        "--reports".into(),
        reports.into(),
    ];
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let both = StreamSelection {
        stdout: true,
        stderr: true,
    };
    let entrypoint = Entrypoint {
        program: program.into(),
        arguments: words.into(),
        name: "rdzv demo-worker".to_owned(),
    };
    let mut config = AgentConfig {
        entrypoint,
        environment: std::env::vars_os().collect(),
        ..AgentConfig::default()
    };
    config.identity.run_id = RunId::new("demo");
    config.identity.local_world_size = args.workers;
    config.restarts.max_restarts = 1;
    config.stop.shutdown_timeout = Duration::from_secs(5);
    config.rendezvous.local_addr = Some("127.0.0.1".to_owned());
    config.logs = LogPlan {
        redirects: RankSelection::All(both),
        console_ranks: Some(BTreeSet::new()),
        ..LogPlan::new(LogBase::Directory(directory.join("logs")))
    };
    Ok(config)
}

/// Shows the output of the workers after a failed demo.
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

fn opening(workers: u32, kill: bool) -> String {
    let who = match workers {
        1 => "One process trains".to_owned(),
        more => format!("{more} processes train"),
    };
    let twist = match (kill, workers) {
        (false, _) => "No process will be killed.",
        (true, 1) => "It will be killed.",
        (true, _) => "One of them will be killed.",
    };
    format!("{who} a small network that tells two half-moons apart. {twist}")
}

/// Shows the text after a successful demo.
fn closing(timeline: &Timeline, finished: Finished, form: Form) {
    let workers = match timeline.workers {
        DEFAULT_WORKERS => String::new(),
        workers => format!(" --workers {workers}"),
    };
    let (otherwise, command) = if timeline.kill {
        ("without a kill", format!("rdzv demo{workers} --no-kill"))
    } else {
        ("with a kill", format!("rdzv demo{workers}"))
    };
    let saw = [
        what_happened(timeline, finished),
        format!(
            "The final loss is {}; {otherwise} it is the same to the last digit ({command}).",
            finished.loss
        ),
        format!(
            "All {} processes have exited, and the temporary directory has been removed.",
            timeline.started
        ),
    ];
    let next = [
        "rdzv run --nproc-per-node 2 --max-restarts 3 train.py",
        "    your PyTorch script, without changes",
        "rdzv run -h",
        "    the most common flags",
    ];
    say("");
    show_block("What you saw", &saw, form);
    say("");
    show_block("What to type next", &next.map(str::to_owned), form);
}

fn what_happened(timeline: &Timeline, finished: Finished) -> String {
    let last = finished.step;
    let Some(killed) = timeline.killed else {
        return format!(
            "{} workers took {last} steps together, each with a share of the data.",
            timeline.workers
        );
    };
    let later = |then: Option<Duration>| {
        let later = then.unwrap_or_default().saturating_sub(killed.at);
        format!("{:.1} ms", later.as_secs_f64() * 1e3)
    };
    format!(
        "Rank {} was killed in step {}. The agent saw it {} later and stopped the rest of the group; \
         {} after the kill all ranks had been restarted. They continued from step {} to {last}.",
        killed.rank,
        killed.step,
        later(killed.noticed),
        later(killed.restarted),
        killed.resumed.unwrap_or_default(),
    )
}

/// Returns the text after a demo that did not run as expected.
fn failure(reason: &str, outcome: &Outcome) -> String {
    let reason = reason.trim_end_matches('.');
    let mut text = format!("\nThe demo did not run as expected: {reason}.");
    if let Outcome::Failed { failures, .. } = outcome {
        for evidence in failures.iter().map(|failure| &failure.evidence) {
            let how = evidence.exit.map_or_else(String::new, how_it_ended);
            text += &format!(
                "\n  rank {} (process {}) ended {how}",
                evidence.rank.unwrap_or_default(),
                evidence.pid.unwrap_or_default()
            );
        }
    }
    text
}
