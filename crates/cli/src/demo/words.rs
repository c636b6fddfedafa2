//! How the demo puts things.

use std::time::Duration;

use rdzv_agent::{Exit, Outcome};
use rustix::process::Signal;

use super::args::DEFAULT_WORKERS;
use super::timeline::{Finished, Timeline};

/// One line of the timeline.
pub(super) fn line(at: Duration, what: &str, text: &str) -> String {
    format!("{:>7.2} s  {what:<8}  {text}", at.as_secs_f64())
}

/// A bar for a fraction; 1 is full.
pub(super) fn bar(fraction: f32) -> String {
    const FULL: f32 = 30.0;
    let len = (fraction.clamp(0.0, 1.5) * FULL).round() as usize;
    "█".repeat(len.max(1))
}

/// "rank 3", "ranks 0, 1, 2".
pub(super) fn ranks<'a>(ranks: impl ExactSizeIterator<Item = &'a u32>) -> String {
    let plural = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", numbers(ranks))
}

/// "1, 2, 3", at most eight of them.
pub(super) fn numbers<'a>(numbers: impl ExactSizeIterator<Item = &'a u32>) -> String {
    const SHOWN: usize = 8;
    let more = numbers.len().saturating_sub(SHOWN);
    let shown: Vec<String> = numbers.take(SHOWN).map(u32::to_string).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// "by SIGKILL", "with exit code 1".
pub(super) fn how_it_ended(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("with exit code {code}"),
        Exit::Signal(signal) if signal == Signal::KILL.as_raw() => "by SIGKILL".to_owned(),
        Exit::Signal(signal) if signal == Signal::TERM.as_raw() => "by SIGTERM".to_owned(),
        Exit::Signal(signal) => format!("by signal {signal}"),
    }
}

/// What comes before the timeline.
pub(super) fn opening(workers: u32, kill: bool) -> String {
    let who = match workers {
        1 => "One process trains".to_owned(),
        more => format!("{more} processes train"),
    };
    let twist = match (kill, workers) {
        (false, _) => "Nobody will be killed.",
        (true, 1) => "It will be killed.",
        (true, _) => "One of them will be killed.",
    };
    format!("{who} a small network that tells two half-moons apart. {twist}\n")
}

/// What comes after a timeline that went as it should.
pub(super) fn closing(timeline: &Timeline, finished: Finished) -> String {
    let workers = match timeline.workers {
        DEFAULT_WORKERS => String::new(),
        workers => format!(" --workers {workers}"),
    };
    let (otherwise, command) = match timeline.kill {
        true => ("without a kill", format!("rdzv demo{workers} --no-kill")),
        false => ("with a kill", format!("rdzv demo{workers}")),
    };
    format!(
        "
What you saw
  {what_happened}
  The final loss is {loss}; {otherwise} it is the same to the last digit ({command}).
  Nothing is left: all {started} processes have ended, the temporary directory is gone.

What to type next
  rdzv run --standalone --nproc-per-node 2 --max-restarts 3 train.py   your PyTorch script, as it is
  rdzv run --help                                                      every flag of torchrun",
        what_happened = what_happened(timeline, finished),
        loss = finished.loss,
        started = timeline.started,
    )
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
        "Rank {} was killed in step {}. The agent saw it {} later and stopped the rest of the group;
  {} after the kill all ranks had been started again, and went on from step {} to {last}.",
        killed.rank,
        killed.step,
        later(killed.noticed),
        later(killed.restarted),
        killed.resumed.unwrap_or_default(),
    )
}

/// What comes after a timeline that did not.
pub(super) fn failure(reason: &str, outcome: &Outcome) -> String {
    let reason = reason.trim_end_matches('.');
    let mut text = format!("\nThis is not how it should have gone: {reason}.");
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
