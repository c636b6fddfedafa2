//! The looks of a run on a terminal: `--ui` and `--no-pty`.

use clap::Args;
use rdzv_agent::{AgentConfig, LiveView, OutputRelay, ViewOptions};
use rdzv_core::env;

use super::context::Environment;
use crate::exit::Refusal;

/// Flags for the terminal. `torchrun` has none of them.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct TerminalArgs {
    /// Looks of a run on a terminal: auto, live or plain
    ///
    /// `live`: the lines of all workers with labels and colours; below them one row for each
    /// progress bar and one for the state of the run. `plain`: lines with labels only. `auto`:
    /// live, on a dumb terminal (TERM=dumb) plain; if stdout and stderr are not both the terminal,
    /// if this node has the only worker of the job, and in the form of torchrun, workers write to
    /// the console themselves. NO_COLOR=1 takes the colours of rdzv away.
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = ["auto", "live", "plain"])]
    ui: String,

    /// Give workers pipes instead of pseudo-terminals
    ///
    /// On a terminal, workers write to pseudo-terminals, so that progress bars, colours and line
    /// buffering are as without rdzv.
    #[arg(long)]
    no_pty: bool,
}

impl TerminalArgs {
    /// Starts the view, if there is to be one; if not, the plan says whether stderr passes through a terminal of ours.
    /// `is_ours`: this program speaks as `rdzv run`, not as torchrun.
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
                    "live needs a terminal as stdout and stderr",
                )),
                _ => Ok(None),
            };
        };
        let is_alone = plan.identity.local_world_size == 1 && plan.rendezvous.plan.nodes() == 1;
        // A program that called the launcher has the terminal; this process is in the background of
        // it.
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
        // Without a thread for it, workers write to the console themselves.
        Ok(view
            .inspect_err(|error| tracing::debug!("no view: {error}"))
            .ok())
    }
}
