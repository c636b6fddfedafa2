//! Preemption and time limits: the scheduler's notice that the job must end.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use rdzv_agent::config::PreemptionPlan;
use rdzv_core::{env, signal};
use rustix::process::Signal;

use super::context::{Context, Environment};
use crate::exit::Refusal;
use crate::explanation::Draft;
use crate::number;

/// Flags for preemption. `torchrun` has none of them.
#[derive(Debug, Clone, Args, PartialEq, Default)]
pub(crate) struct PreemptionArgs {
    /// Signal by which the scheduler announces a preemption, such as USR1 or TERM.
    ///
    /// An agent that receives the signal notifies the other agents. Each agent writes the file that
    /// RDZV_PREEMPT names, and sends the signal once to each of its workers that has a handler for
    /// it, unless the scheduler has sent it to them. No restart follows. If all workers of a node
    /// exit with 0, or because of the signal or SIGTERM, the launcher exits with
    /// --preempt-exit-code. Without this flag, SIGUSR1 and SIGUSR2 are passed on, and SIGTERM ends
    /// the run.
    #[arg(long, value_name = "NAME")]
    preempt_signal: Option<String>,

    /// Seconds that workers have between the notice and SIGTERM.
    ///
    /// The default is --shutdown-timeout, TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30. After SIGTERM,
    /// workers have the shutdown timeout until SIGKILL.
    #[arg(long, value_name = "SECONDS", value_parser = number::int)]
    preempt_grace: Option<i64>,

    /// Exit code of a launch whose workers exited in order after the notice.
    #[arg(long, value_name = "CODE", default_value = "75", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) preempt_exit_code: u8,

    /// Requeue the Slurm job after the notice (`scontrol requeue`)
    ///
    /// The agent of task 0 requeues the job after all of its workers have exited with 0, or because
    /// of the notice or SIGTERM. This ends the rest of the job immediately. A batch script can wait
    /// for all nodes instead: see docs/slurm.md.
    #[arg(long)]
    requeue_on_preempt: bool,
}

impl PreemptionArgs {
    /// Resolves the plan; `None` if no signal is specified.
    ///
    /// The planned path of the notice is in the directory for temporary files. Before the run
    /// starts, a path in a private directory replaces it.
    pub(super) fn resolve(
        &self,
        shutdown_timeout: Duration,
        context: &Context<'_>,
    ) -> Result<Option<PreemptionPlan>, Refusal> {
        let Some(name) = &self.preempt_signal else {
            let needs = [
                ("--preempt-grace", self.preempt_grace.is_some()),
                ("--requeue-on-preempt", self.requeue_on_preempt),
            ];
            let alone = needs.into_iter().find(|(_, is_given)| *is_given);
            return match alone {
                Some((flag, _)) => Err(Refusal::argument(
                    flag,
                    "it has no effect without --preempt-signal",
                )),
                None => Ok(None),
            };
        };
        let number = signal::number(name).or_else(|| signal::number(&format!("SIG{name}")));
        let number = number.filter(|number| {
            // A process cannot handle the first two, and the agent itself uses the others.
            let own = [
                Signal::KILL,
                Signal::STOP,
                Signal::CONT,
                Signal::TSTP,
                Signal::CHILD,
            ];
            !own.map(Signal::as_raw).contains(number)
        });
        let signal = number.ok_or_else(|| {
            let problem =
                format!("'{name}' cannot be used as a notice; use a signal such as USR1 or TERM");
            Refusal::argument("--preempt-signal", &problem)
        })?;
        let shutdown_timeout = match self.preempt_grace.map(u64::try_from) {
            None => shutdown_timeout,
            Some(Ok(seconds)) => Duration::from_secs(seconds),
            Some(Err(_)) => {
                return Err(Refusal::argument("--preempt-grace", "it must be 0 or more"));
            }
        };
        Ok(Some(PreemptionPlan {
            signal,
            shutdown_timeout,
            file: Some(context.temporary_directory().join("preempted")),
        }))
    }

    /// Requeues the job if the user requested it and this is the first task.
    ///
    /// Returns a sentence about the result.
    pub(crate) fn requeue(&self, environment: &Environment) -> Option<String> {
        let is_first = environment.text("SLURM_PROCID").as_deref() == Some("0");
        if !self.requeue_on_preempt || !is_first {
            return None;
        }
        let job = job(environment)?;
        let asked = Command::new("scontrol").args(["requeue", &job]).output();
        Some(match asked {
            Ok(output) if output.status.success() => format!("requeued Slurm job {job}"),
            Ok(output) => format!(
                "cannot requeue Slurm job {job}: scontrol requeue: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ),
            Err(error) => format!(
                "cannot requeue Slurm job {job}, because scontrol cannot be started here \
                 ({error}), as is usual in a container; requeue the job in the batch script"
            ),
        })
    }
}

/// Returns the Unix time in seconds at which the job must end, if it is known.
///
/// Workers find it in RDZV_DEADLINE.
pub(super) fn deadline(scheduled: Option<u64>, context: &mut Context<'_>) -> Option<u64> {
    if let Some(deadline) = scheduled {
        let variable = context.workers.entry(env::RDZV_DEADLINE.into());
        variable.or_insert_with(|| deadline.to_string().into());
    }
    match context.environment.filled(env::RDZV_DEADLINE) {
        Some(text) => text.parse().ok(),
        None => scheduled,
    }
}

/// Returns the job's name for `scontrol`; in an array, that of the array task.
fn job(environment: &Environment) -> Option<String> {
    let array = environment.filled("SLURM_ARRAY_JOB_ID");
    match (array, environment.filled("SLURM_ARRAY_TASK_ID")) {
        (Some(array), Some(task)) => Some(format!("{array}_{task}")),
        _ => environment.filled("SLURM_JOB_ID"),
    }
}

pub(super) fn explain(
    draft: &mut Draft,
    plan: Option<&PreemptionPlan>,
    environment: &Environment,
    deadline: Option<u64>,
) {
    if plan.is_none() && deadline.is_none() {
        return;
    }
    draft.section("Preemption");
    if let Some(plan) = plan {
        let name = signal::in_words(plan.signal);
        draft.setting("notice", "preempt_signal", name, "");
        let shutdown_timeout = format!("{} s", plan.shutdown_timeout.as_secs());
        draft.setting(
            "time after the notice",
            "preempt_grace",
            shutdown_timeout,
            "default: --shutdown-timeout",
        );
        draft.flag("exit code after preemption", "preempt_exit_code");
        draft.flag("requeued by rdzv", "requeue_on_preempt");
    }
    if let Some(deadline) = deadline {
        use crate::explanation::Provenance;
        let provenance = match environment.text(env::RDZV_DEADLINE) {
            Some(_) => Provenance::variable(env::RDZV_DEADLINE),
            None => Provenance::variable("SLURM_JOB_END_TIME"),
        };
        draft.line(env::RDZV_DEADLINE, deadline.to_string(), provenance);
    }
}

/// Returns the directory in which the file for the notice is planned.
pub(crate) fn folder_of(plan: &PreemptionPlan) -> Option<PathBuf> {
    Some(plan.file.as_ref()?.parent()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::context::ThisHost;
    use super::*;

    fn resolved(
        name: Option<&str>,
        shutdown_timeout: Option<i64>,
    ) -> Result<Option<PreemptionPlan>, Refusal> {
        let arguments = PreemptionArgs {
            preempt_signal: name.map(str::to_owned),
            preempt_grace: shutdown_timeout,
            ..PreemptionArgs::default()
        };
        let environment = Environment::default();
        let context = Context::new(&environment, &ThisHost);
        arguments.resolve(Duration::from_secs(30), &context)
    }

    #[test]
    fn signals_have_names_with_and_without_their_prefix() {
        for (name, number) in [("USR1", 10), ("SIGUSR1", 10), ("TERM", 15)] {
            let plan = resolved(Some(name), Some(7)).unwrap().unwrap();
            assert_eq!(
                (plan.signal, plan.shutdown_timeout),
                (number, Duration::from_secs(7))
            );
        }
        let plan = resolved(Some("USR2"), None).unwrap().unwrap();
        assert_eq!(plan.shutdown_timeout, Duration::from_secs(30));
        assert_eq!(resolved(None, None), Ok(None));
    }

    #[test]
    fn a_notice_that_cannot_be_is_refused() {
        for name in ["KILL", "SIGSTOP", "CONT", "USR3", ""] {
            assert!(resolved(Some(name), None).is_err(), "{name}");
        }
        assert!(resolved(Some("USR1"), Some(-1)).is_err());
        assert!(resolved(None, Some(5)).is_err());
    }

    #[test]
    fn a_task_of_an_array_is_queued_again_alone() {
        let variables = |list: &[(&str, &str)]| {
            Environment(
                list.iter()
                    .map(|(name, value)| (name.into(), value.into()))
                    .collect(),
            )
        };
        let one = [("SLURM_JOB_ID", "12")];
        assert_eq!(job(&variables(&one)).as_deref(), Some("12"));
        let array = [
            ("SLURM_JOB_ID", "12"),
            ("SLURM_ARRAY_JOB_ID", "10"),
            ("SLURM_ARRAY_TASK_ID", "2"),
        ];
        assert_eq!(job(&variables(&array)).as_deref(), Some("10_2"));
        assert_eq!(job(&variables(&[])), None);
    }
}
