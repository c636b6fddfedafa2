//! Restarts and ends: failures that lead to a restart, signals that end a run.

use std::time::Duration;

use clap::Args;
use rdzv_agent::AgentConfig;
use rdzv_agent::config::{
    RecoveryPlan, RendezvousOptions, RendezvousPlan, RestartOptions, StopOptions,
};
use rdzv_agent_proto::group::barrier::EXIT_BARRIER_TIMEOUT;
use rdzv_core::env::TORCH_ELASTIC_SHUTDOWN_TIMEOUT;
use rdzv_core::signal;
use rustix::process::Signal;

use super::context::{Context, Environment};
use crate::exit::{Raised, Refusal};
use crate::explanation::{Draft, Provenance};
use crate::number::{self, int_or_raise, parse_int};
use crate::suggestion::did_you_mean;

/// Default shutdown timeout: seconds between the closing signal and SIGKILL.
const SHUTDOWN_TIMEOUT: u64 = 30;

/// Flags for restarts.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct RestartArgs {
    /// Exit codes of workers that prevent a restart, such as 3,42,-6 (SIGABRT)
    ///
    /// A worker that exits with such a code without being stopped fails the run immediately, even
    /// if restarts are left. This is for failures that a restart cannot fix, such as a wrong
    /// configuration.
    #[arg(long, value_name = "CODES", allow_hyphen_values = true)]
    final_exit_codes: Option<String>,

    /// Seconds between the workers' exit and the next rendezvous.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = number::float)]
    settle_delay: f64,

    /// Longest wait of a successful node for the other nodes.
    ///
    /// Without the flag, such a node waits as long as the other nodes run. With `rdzv run` and a
    /// dynamic rendezvous, its workers restart if those of another node restart or a node joins.
    /// After the limit, the node ends with success and leaves the others. The link named torchrun
    /// and `rdzv launch-compat` wait for 300 s, and never join again.
    #[arg(long, value_name = "SECONDS", value_parser = number::float)]
    exit_barrier_timeout: Option<f64>,

    /// Restart a killed agent up to N times in a row (0 disables restarts)
    ///
    /// Only an agent that dies within 10 s of its start counts. An agent that is killed (by
    /// SIGKILL, the kernel's out-of-memory killer, a crash) takes its workers with it. The
    /// restarted agent joins the other nodes in the next round, and --max-restarts is not charged.
    /// If the agent hosted the rendezvous, the restarted agent or another voter hosts it. The
    /// default is 3 for several nodes with c10d over TCP, and 0 otherwise. A node with 0 turns off
    /// the fence of its job. If such a node hosts c10d at a single endpoint, it is the only voter
    /// unless --rdzv-conf sets `voters`.
    #[arg(long, value_name = "N")]
    agent_restarts: Option<u32>,

    /// Keep the processes of workers when another worker is lost.
    ///
    /// The functions of the script that have the decorator `rdzv.resilient` then run again in the
    /// same processes, with new ranks. Only workers that have exited, have not called such a
    /// function, or exceed --abort-timeout get a new process. A recovery is charged to
    /// --max-restarts only on the node whose worker failed. Several nodes need a dynamic
    /// rendezvous. docs/recovery.md describes what the functions must satisfy.
    #[arg(long)]
    in_process: bool,

    /// Seconds that a worker has to leave its function in a recovery (--in-process)
    ///
    /// After this time, rdzv kills the worker and starts another one in its place. If rdzv also
    /// stops other workers, the time is at least the shutdown timeout.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = number::float)]
    abort_timeout: f64,

    /// Import Python modules once; fork the workers from there.
    ///
    /// Restarted workers then need no time for these imports, as with --preload torch,transformers.
    /// Workers that start before the imports are finished execute their program as usual. So do all
    /// workers if the imports fail, leave threads or processes behind, or initialise a GPU; rdzv
    /// prints the reason. docs/preload.md lists the differences for a worker.
    #[arg(long, value_name = "MODULE,...")]
    pub(super) preload: Option<String>,
}

/// Default of `--agent-restarts` for several nodes with c10d over TCP.
const AGENT_RESTARTS: u32 = 3;

/// Flags for the end of a run by a signal.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct StopArgs {
    /// Signals that stop the run and are passed on to the workers.
    #[arg(
        long,
        value_name = "NAME,...",
        default_value = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    )]
    signals_to_handle: String,

    /// Seconds that workers have between the closing signal and SIGKILL.
    ///
    /// The default is TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30. In a Slurm step, the 30 s are
    /// shortened if needed, so that they end before Slurm's SIGKILL (KillWait in slurm.conf, if
    /// that file is readable). Unlike in torchrun, the timeout also applies at restarts and after
    /// failures of a sibling.
    #[arg(long, value_name = "SECONDS", value_parser = number::int)]
    shutdown_timeout: Option<i64>,
}

impl RestartArgs {
    pub(super) fn resolve(&self, max_restarts: i64) -> Result<RestartOptions, Refusal> {
        if max_restarts < 0 {
            let raised = Raised::new("AssertionError", "max_restarts must be >= 0");
            let sentence = format!("--max-restarts is {max_restarts}, but must be 0 or more");
            return Err(raised.plainly(sentence).into());
        }
        let settle_delay = Duration::try_from_secs_f64(self.settle_delay).map_err(|_| {
            let problem = format!(
                "{} is not a non-negative number of seconds",
                self.settle_delay
            );
            Refusal::argument("--settle-delay", &problem)
        })?;
        let codes = self.final_exit_codes.as_deref().unwrap_or_default();
        let codes = codes.split(',').map(str::trim);
        let codes = codes.filter(|code| !code.is_empty()).map(exit_code);
        Ok(RestartOptions {
            max_restarts: u32::try_from(max_restarts).unwrap_or(u32::MAX),
            non_retryable: codes.collect::<Result<_, _>>()?,
            settle_delay,
        })
    }

    /// Resolves the wait at the end for other nodes.
    ///
    /// `is_ours` is `true` only for `rdzv run`.
    pub(super) fn exit_barrier(
        &self,
        is_ours: bool,
        options: &mut RendezvousOptions,
    ) -> Result<(), Refusal> {
        let seconds = self.exit_barrier_timeout.map(Duration::try_from_secs_f64);
        let limit = seconds.transpose().map_err(|_| {
            let given = self.exit_barrier_timeout.unwrap_or_default();
            let problem = format!("{given} is not a non-negative number of seconds");
            Refusal::argument("--exit-barrier-timeout", &problem)
        })?;
        options.joins_again = is_ours;
        options.exit_barrier_timeout = limit.or((!is_ours).then_some(EXIT_BARRIER_TIMEOUT));
        Ok(())
    }

    /// Resolves the recovery of workers in their processes.
    pub(super) fn recovery(
        &self,
        plan: &RendezvousPlan,
        context: &Context<'_>,
    ) -> Result<Option<RecoveryPlan>, Refusal> {
        let abort_timeout = Duration::try_from_secs_f64(self.abort_timeout).map_err(|_| {
            let given = self.abort_timeout;
            let problem = format!("{given} is not a non-negative number of seconds");
            Refusal::argument("--abort-timeout", &problem)
        })?;
        if self.in_process && matches!(plan, RendezvousPlan::Static { nodes, .. } if *nodes > 1) {
            let problem = "several nodes recover only with a dynamic rendezvous\nhelp: add \
                           --rdzv-backend c10d and --rdzv-endpoint HOST:PORT";
            return Err(Refusal::argument("--in-process", problem));
        }
        Ok(self.in_process.then(|| RecoveryPlan {
            abort_timeout,
            directory: context.temporary_directory(),
        }))
    }

    /// Returns the number of restarts of the agent, and the reason for it.
    pub(super) fn of_agent(
        &self,
        plan: &RendezvousPlan,
        context: &mut Context<'_>,
    ) -> (u32, &'static str) {
        let alone = "there is no other node";
        let (default, why) = match plan {
            RendezvousPlan::Dynamic { parameters } if parameters.backend != "c10d" => {
                (None, "only agents of a c10d rendezvous are restarted")
            }
            RendezvousPlan::Static { .. } => (None, "a static rendezvous assigns ranks only once"),
            RendezvousPlan::Local => (Some(0), alone),
            RendezvousPlan::Dynamic { parameters } if parameters.max_nodes == 1 => (Some(0), alone),
            RendezvousPlan::Dynamic { parameters } if parameters.store_type() == "file" => {
                (Some(0), "the rendezvous uses a file")
            }
            RendezvousPlan::Dynamic { .. } => {
                (Some(AGENT_RESTARTS), "several nodes use a c10d rendezvous")
            }
        };
        match (self.agent_restarts, default) {
            (Some(given), None) if given > 0 => {
                context.warn(format!("--agent-restarts has no effect here: {why}"));
                (0, why)
            }
            (Some(given), _) => (given, ""),
            (None, default) => (default.unwrap_or(0), why),
        }
    }
}

fn exit_code(text: &str) -> Result<i32, Refusal> {
    parse_int(text)
        .and_then(|code| i32::try_from(code).ok())
        .filter(|code| (-64..=255).contains(code) && *code != 0)
        .ok_or_else(|| {
            let problem =
                format!("'{text}' is neither an exit code (1 to 255) nor a negative signal number");
            Refusal::argument("--final-exit-codes", &problem)
        })
}

impl StopArgs {
    /// Resolves the options, and parses `--signals-to-handle`.
    ///
    /// An unknown name is refused if `is_strict`, and left out with a warning otherwise. A signal
    /// that no process can handle is an error.
    pub(super) fn resolve(
        &self,
        shutdown_timeout: Duration,
        is_strict: bool,
        context: &mut Context<'_>,
    ) -> Result<StopOptions, Refusal> {
        let mut numbers = Vec::new();
        let deadly = [Signal::KILL, Signal::STOP].map(Signal::as_raw);
        for name in self.signals_to_handle.split(',') {
            match signal::number(name.trim()) {
                Some(number) if deadly.contains(&number) => {
                    let raised = Raised::new("OSError", "[Errno 22] Invalid argument");
                    let name = name.trim();
                    let sentence = format!(
                        "--signals-to-handle contains {name}, which no process can handle: remove \
                         it"
                    );
                    return Err(raised.plainly(sentence).into());
                }
                Some(number) if numbers.contains(&number) => {}
                Some(number) => numbers.push(number),
                None if is_strict => {
                    let name = name.trim();
                    let meant = did_you_mean(name, signal::names());
                    return Err(Refusal::Usage(format!(
                        "--signals-to-handle: signal '{name}' does not exist{meant}; use the names \
                         from `kill -l` with the prefix SIG"
                    )));
                }
                None => context.warn(format!(
                    "Failed to register signal handler for {name}: this signal does not exist"
                )),
            }
        }
        Ok(StopOptions {
            shutdown_timeout,
            signals: numbers,
            signals_text: self.signals_to_handle.clone(),
        })
    }

    /// Returns the shutdown timeout.
    ///
    /// `longest` limits only the default, not a value that the user sets.
    pub(super) fn shutdown_timeout(
        &self,
        longest: Option<Duration>,
        environment: &Environment,
    ) -> Result<Duration, Raised> {
        let seconds = match self.shutdown_timeout {
            Some(seconds) if seconds < 0 => {
                let raised = Raised::value_error(format!(
                    "shutdown_timeout must be non-negative, got {seconds}"
                ));
                return Err(raised.plainly(format!(
                    "--shutdown-timeout is {seconds}, but must be a non-negative number of seconds"
                )));
            }
            Some(seconds) => seconds,
            None => match environment.text(TORCH_ELASTIC_SHUTDOWN_TIMEOUT) {
                Some(text) => int_or_raise(&text).map_err(|raised| {
                    raised.plainly(format!(
                        "{TORCH_ELASTIC_SHUTDOWN_TIMEOUT} is '{text}', but must be a whole number \
                         of seconds"
                    ))
                })?,
                None => {
                    let usual = Duration::from_secs(SHUTDOWN_TIMEOUT);
                    return Ok(longest.map_or(usual, |longest| usual.min(longest)));
                }
            },
        };
        // Only a negative flag is refused; a negative variable counts as 0.
        Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }
}

/// Refuses an interval that `torchrun` refuses; rdzv does not use it.
pub(super) fn check_monitor_interval(interval: f64) -> Result<(), Raised> {
    if interval > 0.0 {
        return Ok(());
    }
    let text = format!("monitor_interval must be > 0, got {interval}");
    let sentence = format!("--monitor-interval is {interval}, but must be more than 0");
    Err(Raised::new("AssertionError", text).plainly(sentence))
}

pub(super) fn explain(
    draft: &mut Draft,
    plan: &AgentConfig,
    agent_restarts: &'static str,
    longest_shutdown_timeout: Option<Duration>,
    environment: &Environment,
) {
    draft.section("Restarts and shutdown");
    let restarts = plan.restarts.max_restarts.to_string();
    draft.setting("restarts after failures", "max_restarts", restarts, "");
    let restarts = plan.rendezvous.agent_restarts.to_string();
    draft.setting(
        "restarts of a killed agent",
        "agent_restarts",
        restarts,
        agent_restarts,
    );
    let limit = plan.rendezvous.exit_barrier_timeout;
    let limit = limit.map_or("none".to_owned(), |it| format!("{} s", it.as_secs_f64()));
    draft.setting(
        "wait for other nodes at the end",
        "exit_barrier_timeout",
        limit,
        "",
    );
    let variable = TORCH_ELASTIC_SHUTDOWN_TIMEOUT;
    let mut provenance = draft.given("shutdown_timeout");
    let mut reason = "on every path: signals, restarts, failures";
    if !draft.is_given("shutdown_timeout") {
        if environment.text(variable).is_some() {
            provenance = Provenance::variable(variable);
        } else if longest_shutdown_timeout == Some(plan.stop.shutdown_timeout) {
            provenance = Provenance::decided("");
            reason =
                "on every path; shorter than the time after which Slurm kills the agent (KillWait)";
        }
    }
    draft.line(
        "time before SIGKILL",
        format!("{} s", plan.stop.shutdown_timeout.as_secs()),
        provenance.because(reason),
    );
    let names = plan.stop.signals.iter().copied().map(signal::in_words);
    let names: Vec<String> = names.collect();
    let names = names.join(", ");
    draft.setting("signals passed on", "signals_to_handle", names, "");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(codes: Option<&str>, settle_delay: f64) -> Result<RestartOptions, Refusal> {
        let flags = RestartArgs {
            final_exit_codes: codes.map(str::to_owned),
            settle_delay,
            exit_barrier_timeout: None,
            agent_restarts: None,
            in_process: false,
            abort_timeout: 30.0,
            preload: None,
        };
        flags.resolve(0)
    }

    #[test]
    fn codes_and_signals_are_numbers() {
        let restarts = read(Some("3, 42,-6"), 1.5).unwrap();
        assert_eq!(restarts.non_retryable, [3, 42, -6].into());
        assert_eq!(restarts.settle_delay, Duration::from_millis(1500));
        assert!(read(None, 0.0).unwrap().non_retryable.is_empty());
    }

    #[test]
    fn what_is_none_is_refused_by_name() {
        for codes in ["0", "256", "x", "3,,SIGTERM", "-65"] {
            assert!(read(Some(codes), 0.0).is_err(), "{codes}");
        }
        for delay in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(read(None, delay).is_err(), "{delay}");
        }
    }
}
