//! The state of the demo: it turns events and reports into lines of output.
//!
//! The timeline also decides which worker to kill, and when. The result depends only on the inputs
//! and their times. The verdict depends only on observed events and the outcome of the run.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_agent::outcome::Exit;
use rdzv_agent::{AgentEvent, Outcome};
use rdzv_console::{LineRole, chart};
use rdzv_core::quantity::count;
use rdzv_core::signal;
use rustix::process::Signal;

use super::progress::{Finished, Progress};

#[derive(Debug, Clone)]
pub(super) enum Observation {
    /// Event of the agent.
    Agent(AgentEvent),
    /// Report of the worker with rank 0.
    Worker(Progress),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Show a line to the user: role, head and text.
    Print(LineRole, String, String),
    /// Kill the worker with this process id.
    Kill(u32),
}

#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) workers: u32,
    /// `true` if the demo kills a worker.
    pub(super) kill: bool,
    pub(super) restarts: u32,
    /// Process ids of the running workers of this attempt, by rank.
    pub(super) running: BTreeMap<u32, u32>,
    /// Exits of workers of this attempt, except for the victim, by rank.
    ended: BTreeMap<u32, Exit>,
    /// Number of workers started in all attempts.
    pub(super) started: usize,
    /// Last reported step.
    step: u32,
    first_loss: Option<f32>,
    /// Loss by step number. A repeated step counts once.
    losses: BTreeMap<u32, f32>,
    pub(super) killed: Option<Killed>,
    pub(super) finished: Option<Finished>,
}

/// Killed worker, and the recovery from it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Killed {
    pub(super) rank: u32,
    pub(super) pid: u32,
    pub(super) at: Duration,
    /// Step during which the kill happened.
    pub(super) step: u32,
    /// Time at which the agent reported the death by SIGKILL.
    pub(super) noticed: Option<Duration>,
    /// Time at which all workers had been restarted.
    pub(super) restarted: Option<Duration>,
    /// Step of the checkpoint from which they continued.
    pub(super) resumed: Option<u32>,
}

const SIGKILL: i32 = Signal::KILL.as_raw();

/// Last reported step before the kill, some steps after a checkpoint.
const KILL_AT: u32 = 47;

/// Width of the chart of all losses, in columns.
const COLUMNS: usize = 60;

/// Number of steps between two printed lines.
const SHOWN: u32 = 20;

impl Timeline {
    pub(super) fn new(workers: u32, kill: bool) -> Self {
        Self {
            workers,
            kill,
            ..Self::default()
        }
    }

    /// Handles an input; `at` is the time since the start of the demo.
    pub(super) fn handle(&mut self, at: Duration, observation: Observation) -> Vec<Action> {
        let mut actions = Vec::new();
        match observation {
            Observation::Agent(event) => self.handle_event(at, &event, &mut actions),
            Observation::Worker(progress) => self.handle_progress(at, progress, &mut actions),
        }
        actions
    }

    fn handle_event(&mut self, at: Duration, event: &AgentEvent, actions: &mut Vec<Action>) {
        let mut print = |what: &str, text: String| actions.push(line(at, what, text));
        match event {
            AgentEvent::WorkerStarted { worker, .. } => {
                self.started += 1;
                self.running.insert(worker.rank.0, worker.pid);
                if self.running.len() == self.workers as usize {
                    if let Some(killed) = &mut self.killed {
                        killed.restarted = Some(at);
                    }
                    let who = ranks(self.running.keys());
                    let pids = numbers(self.running.values());
                    print("start", format!("{who} as processes {pids}"));
                }
            }
            AgentEvent::WorkerExited { worker, exit, .. } => {
                self.running.remove(&worker.rank.0);
                match &mut self.killed {
                    Some(killed) if killed.pid == worker.pid => {
                        let how = how_it_ended(*exit);
                        let took = (at - killed.at).as_secs_f64() * 1e3;
                        print(
                            "died",
                            format!("rank {} {how}; seen {took:.1} ms later", worker.rank),
                        );
                        if *exit == Exit::Signal(SIGKILL) {
                            killed.noticed = Some(at);
                        }
                    }
                    _ => {
                        self.ended.insert(worker.rank.0, *exit);
                    }
                }
            }
            AgentEvent::Restarting {
                remaining, most, ..
            } => {
                self.restarts += 1;
                let mut by_end: BTreeMap<(&str, String), Vec<u32>> = BTreeMap::new();
                for (rank, exit) in std::mem::take(&mut self.ended) {
                    // A worker may notice the loss of its peer and exit before the agent's signal.
                    let what = match exit {
                        Exit::Code(_) => "gave up",
                        Exit::Signal(_) => "stopped",
                    };
                    let end = (what, how_it_ended(exit));
                    by_end.entry(end).or_default().push(rank);
                }
                for ((what, how), who) in by_end {
                    print(what, format!("{} {how}", ranks(who.iter())));
                }
                print("restart", format!("{} of {most}", most - remaining));
            }
            _ => {}
        }
    }

    fn handle_progress(&mut self, at: Duration, progress: Progress, actions: &mut Vec<Action>) {
        let mut print = |what: &str, text: String| actions.push(line(at, what, text));
        match progress {
            Progress::Joined { step } => {
                if self.restarts == 0 {
                    return print(
                        "met",
                        "at the agent's store; the training begins".to_owned(),
                    );
                }
                let lost = self.step.saturating_sub(step);
                if let Some(killed) = &mut self.killed {
                    killed.resumed = Some(step);
                }
                print(
                    "resumed",
                    format!(
                        "from the checkpoint of step {step}; repeating {}",
                        count(lost, "step")
                    ),
                );
            }
            Progress::Step { step, loss } => {
                self.step = step;
                self.losses.insert(step, loss);
                let first = *self.first_loss.get_or_insert(loss);
                if step == 1 || step % SHOWN == 0 {
                    let bar = bar(loss / first);
                    print("step", format!("{step:>3}  loss {loss:.4}  {bar}"));
                }
                let early = self.killed.is_none() && self.restarts == 0;
                if self.kill && early && step >= KILL_AT {
                    self.choose_victim(at, actions);
                }
            }
            Progress::Finished(finished) => {
                self.finished = Some(finished);
                let Finished {
                    step,
                    loss,
                    accuracy,
                } = finished;
                let percent = accuracy * 100.0;
                print(
                    "done",
                    format!("{step:>3}  loss {loss:.4}  {percent:.1} % of the points told apart"),
                );
                let losses: Vec<f64> = self.losses.values().map(|loss| f64::from(*loss)).collect();
                print("loss", chart::columns(&losses, COLUMNS));
            }
        }
    }

    /// Chooses the last rank, because rank 0 sends the reports.
    fn choose_victim(&mut self, at: Duration, actions: &mut Vec<Action>) {
        let Some((&rank, &pid)) = self.running.last_key_value() else {
            return;
        };
        let step = self.step + 1;
        self.killed = Some(Killed {
            rank,
            pid,
            at,
            step,
            noticed: None,
            restarted: None,
            resumed: None,
        });
        let text =
            format!("rank {rank}, process {pid}, with SIGKILL, in the middle of step {step}");
        actions.push(line(at, "KILL", text));
        actions.push(Action::Kill(pid));
    }

    /// Returns the result of a demo that ran as expected, or the first deviation.
    pub(super) fn verdict(&self, outcome: &Outcome) -> Result<Finished, String> {
        if let Outcome::Error(error) = outcome {
            return Err(format!("the agent could not continue: {error}"));
        }
        if let Outcome::Signalled { signal, .. } = outcome {
            return Err(format!("stopped by signal {signal}"));
        }
        if !matches!(outcome, Outcome::Succeeded) {
            return Err("the workers failed".to_owned());
        }
        if self.kill {
            let killed = self.killed.ok_or("no worker was killed")?;
            killed.noticed.ok_or("the victim did not die of SIGKILL")?;
            killed
                .restarted
                .ok_or("the agent did not restart the workers")?;
            match killed.resumed {
                None => return Err("the workers did not continue".to_owned()),
                Some(0) => return Err("the workers restarted without a checkpoint".to_owned()),
                Some(_) => {}
            }
        }
        if self.restarts != u32::from(self.kill) {
            return Err(format!("there were {} restarts", self.restarts));
        }
        let finished = self.finished.ok_or("the training did not finish")?;
        if finished.accuracy < 0.9 {
            return Err("the network learned nothing".to_owned());
        }
        if !self.running.is_empty() {
            let left = numbers(self.running.values());
            return Err(format!("still running: process {left}"));
        }
        Ok(finished)
    }
}

fn line(at: Duration, what: &str, text: String) -> Action {
    let role = match what {
        "KILL" | "died" => LineRole::Error,
        "stopped" | "gave up" | "restart" => LineRole::Warning,
        "resumed" | "done" => LineRole::Good,
        "loss" => LineRole::Advice,
        _ => LineRole::Detail,
    };
    let head = format!("{:>7.2} s  {what:<8}  ", at.as_secs_f64());
    Action::Print(role, head, text)
}

/// Returns a bar for a fraction; 1 corresponds to 30 columns.
fn bar(fraction: f32) -> String {
    const FULL: f32 = 30.0;
    let len = (fraction.clamp(0.0, 1.5) * FULL).round() as usize;
    "█".repeat(len.max(1))
}

/// Returns text such as "rank 3" or "ranks 0, 1, 2".
fn ranks<'a>(ranks: impl ExactSizeIterator<Item = &'a u32>) -> String {
    let plural = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", numbers(ranks))
}

/// Returns up to eight numbers, such as "1, 2, 3".
fn numbers<'a>(numbers: impl ExactSizeIterator<Item = &'a u32>) -> String {
    const SHOWN: usize = 8;
    let more = numbers.len().saturating_sub(SHOWN);
    let shown: Vec<String> = numbers.take(SHOWN).map(u32::to_string).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns text such as "by SIGKILL" or "with exit code 1".
pub(super) fn how_it_ended(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("with exit code {code}"),
        Exit::Signal(number) => format!("by {}", signal::in_words(number)),
    }
}

#[cfg(test)]
mod tests;
