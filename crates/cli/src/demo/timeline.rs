//! The story as it unfolds: events and reports in, lines out; and one decision, whom to kill when.
//!
//! A function of what it is told and when. It believes nothing that it was not told, so that its
//! verdict is worth something.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_agent::{AgentEvent, Exit, Outcome};

use super::KILL_AT;
use super::progress::Progress;
use super::words::{bar, how_it_ended, line, numbers, ranks};

/// Something that the timeline is told.
#[derive(Debug, Clone)]
pub(super) enum Happened {
    /// By the agent.
    Agent(AgentEvent),
    /// By the worker with rank 0.
    Worker(Progress),
}

/// Something that the timeline wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    /// A line for the user.
    Line(String),
    /// The worker with this process id killed.
    Kill(u32),
}

/// What has been seen so far.
#[derive(Debug)]
pub(super) struct Timeline {
    pub(super) workers: u32,
    /// Whether somebody is to be killed.
    pub(super) kill: bool,
    pub(super) restarts: u32,
    /// Process ids of the workers of this attempt that run, by rank.
    pub(super) running: BTreeMap<u32, u32>,
    /// How the others of this attempt ended.
    ended: BTreeMap<u32, Exit>,
    /// How many workers have been started in all attempts.
    pub(super) started: usize,
    /// The last step of this attempt.
    step: u32,
    first_loss: Option<f32>,
    pub(super) killed: Option<Killed>,
    pub(super) finished: Option<Finished>,
}

/// The victim, and what came after.
#[derive(Debug, Clone, Copy)]
pub(super) struct Killed {
    pub(super) rank: u32,
    pub(super) pid: u32,
    pub(super) at: Duration,
    /// The step that it was in.
    pub(super) step: u32,
    /// When the agent said that it had died of SIGKILL.
    pub(super) noticed: Option<Duration>,
    /// When all workers had been started again.
    pub(super) restarted: Option<Duration>,
    /// The step of the checkpoint from which they went on.
    pub(super) resumed: Option<u32>,
}

/// What came out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finished {
    pub(super) step: u32,
    pub(super) loss: f32,
    pub(super) accuracy: f32,
}

const SIGKILL: i32 = rustix::process::Signal::KILL.as_raw();

/// Every so many steps there is a line.
const SHOWN: u32 = 20;

impl Timeline {
    pub(super) fn new(workers: u32, kill: bool) -> Self {
        Self {
            workers,
            kill,
            restarts: 0,
            running: BTreeMap::new(),
            ended: BTreeMap::new(),
            started: 0,
            step: 0,
            first_loss: None,
            killed: None,
            finished: None,
        }
    }

    /// Takes note of what happened so long after the start of the demo.
    pub(super) fn handle(&mut self, at: Duration, happened: Happened) -> Vec<Wish> {
        let mut wishes = Vec::new();
        match happened {
            Happened::Agent(event) => self.handle_event(at, &event, &mut wishes),
            Happened::Worker(progress) => self.handle_progress(at, progress, &mut wishes),
        }
        wishes
    }

    fn handle_event(&mut self, at: Duration, event: &AgentEvent, wishes: &mut Vec<Wish>) {
        let mut tell = |what: &str, text: String| wishes.push(Wish::Line(line(at, what, &text)));
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
                    tell("start", format!("{who} as processes {pids}"));
                }
            }
            AgentEvent::WorkerExited { worker, exit, .. } => {
                self.running.remove(&worker.rank.0);
                match &mut self.killed {
                    Some(killed) if killed.pid == worker.pid => {
                        let how = how_it_ended(*exit);
                        let took = (at - killed.at).as_secs_f64() * 1e3;
                        tell(
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
                    // A worker that sees its peer go may be faster than the agent's signal.
                    let what = match exit {
                        Exit::Code(_) => "gave up",
                        Exit::Signal(_) => "stopped",
                    };
                    let end = (what, how_it_ended(exit));
                    by_end.entry(end).or_default().push(rank);
                }
                for ((what, how), who) in by_end {
                    tell(what, format!("{} {how}", ranks(who.iter())));
                }
                tell("restart", format!("{} of {most}", most - remaining));
            }
            _ => {}
        }
    }

    fn handle_progress(&mut self, at: Duration, progress: Progress, wishes: &mut Vec<Wish>) {
        let mut tell = |what: &str, text: String| wishes.push(Wish::Line(line(at, what, &text)));
        match progress {
            Progress::Met { step } => {
                if self.restarts == 0 {
                    return tell(
                        "met",
                        "at the agent's store; the training begins".to_owned(),
                    );
                }
                let lost = self.step.saturating_sub(step);
                if let Some(killed) = &mut self.killed {
                    killed.resumed = Some(step);
                }
                tell(
                    "resumed",
                    format!("from the checkpoint of step {step}; {lost} steps are done again"),
                );
            }
            Progress::Step { step, loss } => {
                self.step = step;
                let first = *self.first_loss.get_or_insert(loss);
                if step == 1 || step % SHOWN == 0 {
                    let bar = bar(loss / first);
                    tell("step", format!("{step:>3}  loss {loss:.4}  {bar}"));
                }
                let early = self.killed.is_none() && self.restarts == 0;
                if self.kill && early && step >= KILL_AT {
                    self.choose_victim(at, wishes);
                }
            }
            Progress::Finished {
                step,
                loss,
                accuracy,
            } => {
                self.finished = Some(Finished {
                    step,
                    loss,
                    accuracy,
                });
                let percent = accuracy * 100.0;
                tell(
                    "done",
                    format!("{step:>3}  loss {loss:.4}  {percent:.1} % of the points told apart"),
                );
            }
        }
    }

    /// The last one: rank 0 would do as well, but it is the one that reports.
    fn choose_victim(&mut self, at: Duration, wishes: &mut Vec<Wish>) {
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
        wishes.push(Wish::Line(line(at, "KILL", &text)));
        wishes.push(Wish::Kill(pid));
    }

    /// Whether everything happened as the demo says, or what did not.
    pub(super) fn verdict(&self, outcome: &Outcome) -> Result<Finished, String> {
        if let Outcome::Error(error) = outcome {
            return Err(format!("the agent could not go on: {error}"));
        }
        if let Outcome::Signalled { signal, .. } = outcome {
            return Err(format!("stopped by signal {signal}"));
        }
        if !matches!(outcome, Outcome::Succeeded) {
            return Err("the workers failed".to_owned());
        }
        if self.kill {
            let killed = self.killed.ok_or("nobody was killed")?;
            killed.noticed.ok_or("the victim did not die of SIGKILL")?;
            killed
                .restarted
                .ok_or("the workers were not started again")?;
            match killed.resumed {
                None => return Err("the workers did not go on".to_owned()),
                Some(0) => return Err("the workers began anew, not from a checkpoint".to_owned()),
                Some(_) => {}
            }
        }
        if self.restarts != u32::from(self.kill) {
            return Err(format!("there were {} restarts", self.restarts));
        }
        let finished = self.finished.ok_or("the training did not end")?;
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

#[cfg(test)]
mod tests;
