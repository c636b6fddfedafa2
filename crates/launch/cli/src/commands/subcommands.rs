//! The commands of `rdzv` that are not launchers.
//!
//! For an invalid command line, they print one sentence; `rdzv` alone prints its help.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory, Parser, Subcommand};
use rdzv_core::env;

use super::check::{self, CheckArgs};
use super::link::{self, LinkArgs};
use super::manual::{self, ManArgs};
use super::store_command::{self, StoreArgs};
use super::verdict::{self, VerdictArgs};
use super::{completions, help, launcher};
use crate::args::{self, Launcher, Parsed, variable};
use crate::demo::{self, DemoArgs, DemoWorkerArgs};
use crate::exit::Exit;
use crate::face::Face;
use crate::launch::{LaunchArgs, RunArgs};
use crate::observe::log;
use crate::terminal::{complain, show};
use crate::trust::{self, TokenArgs};
use crate::views::logs::{self, LogsArgs};
use crate::views::ps::{self, PsArgs};
use crate::views::stacks::{self, StacksArgs};
use crate::views::timeline::{self, TimelineArgs};
use crate::views::top::{self, TopArgs};

/// The commands of `rdzv`.
#[derive(Debug, Parser)]
#[command(
    name = "rdzv",
    version,
    about = "The control plane of distributed training",
    after_help = "A link named `torchrun` to this program behaves as `torchrun`.",
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
struct OwnArgs {
    #[command(subcommand)]
    command: OwnCommand,
}

/// One command of `rdzv`.
#[derive(Debug, Subcommand)]
enum OwnCommand {
    /// Start and supervise the workers of this node, like torchrun.
    Run(RunArgs),
    /// Start workers like the older `python -m torch.distributed.launch`.
    LaunchCompat(LaunchArgs),
    /// Run a key/value store that PyTorch's TCPStore clients can use.
    Store(StoreArgs),
    /// Create a job token, which authenticates the processes of a job.
    Token(TokenArgs),
    Ps(PsArgs),
    Top(TopArgs),
    Logs(LogsArgs),
    Stacks(StacksArgs),
    Timeline(TimelineArgs),
    Verdict(VerdictArgs),
    Check(CheckArgs),
    Demo(DemoArgs),
    #[command(hide = true)]
    DemoWorker(DemoWorkerArgs),
    /// Show a page about a topic, such as exit-codes, or a command's help.
    Help {
        /// Topic or command (default: list the topics)
        topic: Option<String>,

        /// Print the flags of `rdzv run` as JSON.
        #[arg(long, conflicts_with = "topic")]
        json: bool,
    },
    /// List the environment variables of rdzv and its workers.
    Env,
    Link(LinkArgs),
    Man(ManArgs),
    /// Print a completion script for a shell.
    Completions {
        /// Shell: bash, zsh, fish, elvish, powershell or tcsh.
        #[arg(value_parser = ["bash", "zsh", "fish", "elvish", "powershell", "tcsh"])]
        shell: String,
    },
}

/// Runs the command that the words name.
pub(crate) fn run(words: &[OsString]) -> ExitCode {
    let line = std::iter::once(OsString::from("rdzv")).chain(words.iter().cloned());
    let command = match OwnArgs::try_parse_from(line) {
        Ok(own) => own.command,
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return Exit::Success.into();
        }
        Err(error) => {
            complain(&sentence(&error));
            return Exit::Usage.into();
        }
    };
    let level = std::env::var(env::LOGLEVEL).ok();
    match log::level(level.as_deref()) {
        // The demo prints its own lines. It shows the agent's log only if LOGLEVEL is set.
        Ok(_) if level.is_none() && matches!(command, OwnCommand::Demo(_)) => {}
        Ok(level) => log::install(level, Face::Rdzv),
        Err(raised) => {
            complain(&format!("rdzv: {raised}"));
            return Exit::Usage.into();
        }
    }
    match command {
        OwnCommand::Run(_) | OwnCommand::LaunchCompat(_) => {
            unreachable!("`Program::of` handles launchers before")
        }
        OwnCommand::Store(arguments) => store_command::run(&arguments),
        OwnCommand::Token(arguments) => trust::make_token(&arguments),
        OwnCommand::Ps(arguments) => ps::run(&arguments),
        OwnCommand::Top(arguments) => top::run(&arguments),
        OwnCommand::Logs(arguments) => logs::run(&arguments),
        OwnCommand::Stacks(arguments) => stacks::run(&arguments),
        OwnCommand::Timeline(arguments) => timeline::run(&arguments),
        OwnCommand::Verdict(arguments) => verdict::run(&arguments),
        OwnCommand::Check(arguments) => check::run(&arguments),
        OwnCommand::Demo(arguments) if rdzv_agent::launcher::is_kept() => demo::run(&arguments),
        OwnCommand::Demo(_) => launcher::keep(OsStr::new("rdzv")),
        OwnCommand::DemoWorker(arguments) => demo::work(&arguments),
        OwnCommand::Help { json: true, .. } => show(&args::json(args::command(Launcher::Run))),
        OwnCommand::Help { topic, .. } => show_help(topic.as_deref()),
        OwnCommand::Env => show(&variables()),
        OwnCommand::Link(arguments) => link::run(&arguments),
        OwnCommand::Man(arguments) => manual::run(&arguments, table()),
        OwnCommand::Completions { shell } => {
            let mut table = table();
            for name in LAUNCHERS {
                table = table.mut_subcommand(name, completions::with_values);
            }
            let topics: Vec<&str> = help::topics().collect();
            let table = table.mut_subcommand("help", |help| {
                help.mut_arg("topic", |topic| topic.value_parser(topics.clone()))
            });
            completions::print(table, "rdzv", &shell)
        }
    }
}

/// The commands with the flags of a launcher.
const LAUNCHERS: [&str; 2] = ["run", "launch-compat"];

/// Returns the table of all commands.
///
/// The flags of both launchers are in groups, as in the help of `rdzv run`.
fn table() -> Command {
    let launcher = |launcher, name: &'static str| {
        let command = args::grouped(args::command(launcher));
        command
            .name(name)
            .override_usage(format!("rdzv {name} [OPTIONS] <TRAINING_SCRIPT> [ARGS]..."))
    };
    OwnArgs::command()
        .mut_subcommand("run", |_| launcher(Launcher::Run, "run"))
        .mut_subcommand("launch-compat", |_| {
            launcher(Launcher::LaunchCompat, "launch-compat")
        })
}

/// Shows the help of a command or the page of a topic, for `rdzv help`.
fn show_help(topic: Option<&str>) -> ExitCode {
    let mut table = OwnArgs::command();
    let launcher = match topic {
        Some("run") => Some(Launcher::Run),
        Some("launch-compat") => Some(Launcher::LaunchCompat),
        _ => None,
    };
    if let Some(launcher) = launcher
        && let Ok(Parsed::Help(text)) = args::parse(launcher, &["--help".into()], &BTreeMap::new())
    {
        return show(&text);
    }
    table.build();
    let commands: Vec<String> = table
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(|command| command.get_name().to_owned())
        .collect();
    if let Some(command) = topic.and_then(|topic| table.find_subcommand_mut(topic)) {
        return show(&command.render_long_help().to_string());
    }
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    help::run(topic, &commands)
}

/// Returns clap's error in one sentence, or the help for an empty line.
fn sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return text.trim_end().to_owned();
    }
    // Missing arguments and possible values are on the lines after the first.
    let lines = text.lines().take_while(|line| !line.is_empty());
    let problem: Vec<&str> = lines.map(str::trim).collect();
    let problem = problem.join(" ");
    let problem = problem.strip_prefix("error: ").unwrap_or(&problem);
    format!("rdzv: {problem}; see `rdzv --help`")
}

/// Returns the text of `rdzv env`: the variables that rdzv reads or sets.
fn variables() -> String {
    let mut text = String::from("Variables of workers and of the launcher:\n");
    for (name, meaning) in env::ALL {
        text += &format!("  {name}\n      {}\n", meaning.trim());
    }
    text += "\nDefaults of flags, overridden by the command line:\n";
    for option in args::command(Launcher::Torchrun).get_arguments() {
        if let (Some(name), Some(flag)) = (variable(option), option.get_long()) {
            text += &format!("  {name:<32} --{flag}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_workers_variables_and_flag_defaults() {
        let text = variables();
        for line in [
            "  LOCAL_RANK\n",
            "  PET_NPROC_PER_NODE               --nproc-per-node\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("PET_LOGS_SPECS"), "{text}");
    }
}
