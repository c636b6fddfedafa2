//! The display of a run on a terminal: `--ui` and `--no-pty`.

use clap::Args;
use rdzv_agent::AgentConfig;
use rdzv_agent::launcher::{LiveView, OutputRelay, ViewOptions};
use rdzv_core::env;

use super::context::Environment;
use crate::exit::Refusal;

/// Flags for the terminal. `torchrun` has none of them.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct TerminalArgs {
    /// Display of a run on a terminal: auto, live or plain.
    ///
    /// `live` shows the lines of all workers with labels and colours. Below them is one row for
    /// each progress bar, and one for the state of the run. `plain` shows only lines with labels.
    /// `auto` is live, or plain if TERM is `dumb` or not set. With `auto`, the only worker of a job
    /// writes its stdout directly to the terminal, and its stderr through a pseudo-terminal. If
    /// rdzv behaves as torchrun, or `rdzv.launch` has started it, `auto` lets all workers write
    /// directly to the terminal. NO_COLOR=1 turns off rdzv's colours.
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = ["auto", "live", "plain"])]
    ui: String,

    /// Give workers pipes instead of pseudo-terminals.
    ///
    /// Pseudo-terminals make progress bars, colours and line buffering work as without rdzv. With
    /// this flag and `--ui auto`, the only worker of a job also writes its stderr directly to the
    /// terminal.
    #[arg(long)]
    no_pty: bool,
}

impl TerminalArgs {
    /// Starts the view, if the flags and the terminal allow one.
    ///
    /// Otherwise, the method may change the plan, so that stderr passes through a pseudo-terminal.
    /// `is_ours` is `true` if this program prints in rdzv's style, not in torchrun's.
    pub(crate) fn view(
        &self,
        is_ours: bool,
        plan: &mut AgentConfig,
        environment: &Environment,
        relay: Option<OutputRelay>,
    ) -> Result<Option<LiveView>, Refusal> {
        let Some(relay) = relay else {
            return match self.ui.as_str() {
                "live" => Err(Refusal::argument(
                    "--ui",
                    "live requires that stdout and stderr are the same terminal",
                )),
                _ => Ok(None),
            };
        };
        let is_alone = plan.identity.local_world_size == 1 && plan.rendezvous.plan.nodes() == 1;
        // A program that started the launcher owns the terminal; this process is in its background.
        let is_called = environment.filled(env::RDZV_CALLER).is_some();
        let is_direct = self.ui == "auto" && (is_alone || !is_ours || is_called);
        if is_direct || !plan.logs.capture_stderr {
            plan.logs.capture_terminal = is_ours && !is_called && !self.no_pty;
            return Ok(None);
        }
        let is_dumb = environment
            .filled(env::TERM)
            .is_none_or(|term| term == "dumb");
        let rows = match self.ui.as_str() {
            "auto" => !is_dumb,
            ui => ui == "live",
        };
        let options = ViewOptions {
            rows,
            terminals: !self.no_pty,
            colours: !is_dumb && environment.filled(env::NO_COLOR).is_none(),
            workers: plan.identity.local_world_size,
        };
        let view = relay.show(options);
        // If no thread can be started for the view, workers write to the console themselves.
        Ok(view
            .inspect_err(|error| tracing::debug!("cannot open the live view: {error}"))
            .ok())
    }
}
