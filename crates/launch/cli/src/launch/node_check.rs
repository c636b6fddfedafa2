//! The command that must succeed before this node joins a round.

use std::time::Duration;

use clap::Args;
use rdzv_agent::config::NodeCheckPlan;

use crate::exit::Refusal;
use crate::explanation::Draft;
use crate::number;

/// Flags for the check of a node. `torchrun` has none of them.
#[derive(Debug, Clone, Args, PartialEq, Default)]
pub(crate) struct NodeCheckArgs {
    /// Command (for sh) that must exit with 0 before this node joins.
    ///
    /// The command runs before every round, also after a failure. A node leaves the job if its
    /// check fails or exceeds --node-check-timeout. The node then reports the check's last line of
    /// output and exits with 77, and a spare node, if there is one, replaces it. `rdzv check
    /// --local` is such a command.
    #[arg(long, value_name = "COMMAND")]
    node_check: Option<String>,

    /// Time limit of the --node-check command, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = number::float)]
    node_check_timeout: f64,
}

impl NodeCheckArgs {
    pub(super) fn resolve(&self) -> Result<Option<NodeCheckPlan>, Refusal> {
        let timeout = Duration::try_from_secs_f64(self.node_check_timeout).ok();
        let timeout = timeout
            .filter(|timeout| !timeout.is_zero())
            .ok_or_else(|| {
                let problem = format!(
                    "{} is not a positive number of seconds",
                    self.node_check_timeout
                );
                Refusal::argument("--node-check-timeout", &problem)
            })?;
        let command = self.node_check.clone();
        let command = command.filter(|command| !command.trim().is_empty());
        Ok(command.map(|command| NodeCheckPlan { command, timeout }))
    }
}

pub(super) fn explain(draft: &mut Draft, plan: Option<&NodeCheckPlan>) {
    let Some(plan) = plan else { return };
    draft.section("Check of this node");
    draft.setting("before each round", "node_check", plan.command.clone(), "");
    let limit = format!("{} s", plan.timeout.as_secs_f64());
    draft.setting("limit", "node_check_timeout", limit, "");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_has_a_limit() {
        let of = |command: &str, seconds| {
            let flags = NodeCheckArgs {
                node_check: Some(command.to_owned()),
                node_check_timeout: seconds,
            };
            flags.resolve()
        };
        let plan = of("nvidia-smi", 1.5).unwrap().unwrap();
        assert_eq!(plan.timeout, Duration::from_millis(1500));
        assert_eq!(of(" ", 60.0), Ok(None));
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(of("true", seconds).is_err(), "{seconds}");
        }
    }
}
