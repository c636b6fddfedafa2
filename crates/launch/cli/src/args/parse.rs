//! Parser of the launchers' command lines: produces [`LaunchArgs`].

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::builder::PossibleValue;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use rdzv_core::env::{RDZV_COMPAT_OUTPUT, RDZV_SCHEDULER};

use super::contradictions::settle;
use super::conventions::{Normalised, display, normalise, variable};
use super::help;
use super::program::Launcher;
use crate::exit::Refusal;
use crate::explanation::{Given, Setting};
use crate::face::Face;
use crate::launch::{LaunchArgs, RunArgs};
use crate::number::PARSED;
use crate::scheduler::{SCHEDULERS, Scheduled, Value, scheduled};
use crate::suggestion::did_you_mean;

/// Flags that are not settings of a run: they request other output.
const QUESTIONS: [&str; 3] = ["help", "print_completion", "explain"];

/// Request that a command line makes.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// Run with these flags.
    ///
    /// The settings are the same flags with their origins, in the order of clap's table.
    Run(Box<LaunchArgs>, Vec<Setting>),
    /// Show this help on stdout.
    Help(String),
    /// Print the completion script for this shell.
    Completion(String),
}

/// Parses a line without the program's name, by the conventions of `torchrun`.
pub(crate) fn parse(
    launcher: Launcher,
    line: &[OsString],
    environment: &BTreeMap<OsString, OsString>,
) -> Result<Parsed, Refusal> {
    let command = command(launcher);
    let mut normalised = normalise(&command, line, environment)?;
    let warnings = match launcher {
        Launcher::Run => settle(&mut normalised, environment),
        _ => Vec::new(),
    };
    let read = |normalised: &Normalised| {
        let words = std::iter::once(launcher.program().into()).chain(normalised.line.clone());
        let matches = command.clone().try_get_matches_from(words)?;
        let arguments = match launcher {
            Launcher::LaunchCompat => LaunchArgs::from_arg_matches(&matches),
            // Only the older launcher passes another argument to scripts: `--local-rank`.
            _ => RunArgs::from_arg_matches(&matches).map(|run| LaunchArgs { run, use_env: true }),
        };
        Ok::<_, clap::Error>((matches, arguments?))
    };
    let (mut matches, mut arguments) = match read(&normalised) {
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            return Ok(Parsed::Help(match launcher {
                Launcher::Run => help::text(command, line.iter().any(|word| word == "-h")),
                _ => error.to_string(),
            }));
        }
        Err(error) => return Err(usage_error(&command, &error)),
    };
    if let Some(shell) = &arguments.run.print_completion {
        return Ok(Parsed::Completion(shell.clone()));
    }
    if arguments.run.training_script.is_empty() {
        return Err(Refusal::Parser {
            torchrun: "the following arguments are required: training_script, training_script_args"
                .to_owned(),
            plain: format!(
                "no script was specified: {} (-h shows examples)",
                synopsis(launcher.program())
            ),
        });
    }
    if !normalised.unknown.is_empty() {
        return Err(Refusal::Usage(unrecognised(
            launcher,
            &command,
            &normalised.unknown,
        )));
    }
    if launcher == Launcher::Run {
        if let Some(refusal) = value_as_script(&arguments.run, &normalised) {
            return Err(refusal);
        }
        let mut scheduled = ask_scheduler(&matches, environment)?;
        scheduled.warnings.extend(warnings);
        for Value {
            id,
            value,
            variable,
        } in &scheduled.values
        {
            let option = command.get_arguments().find(|option| option.get_id() == id);
            let name = option.and_then(Arg::get_long);
            let name = name.expect("values of schedulers are for flags");
            normalised
                .line
                .insert(0, format!("--{name}={value}").into());
            let variable = (*variable).to_owned();
            normalised
                .from_environment
                .insert((*id).to_owned(), variable);
        }
        if !scheduled.values.is_empty() {
            (matches, arguments) =
                read(&normalised).map_err(|error| usage_error(&command, &error))?;
        }
        arguments.run.scheduled = scheduled;
    }
    let options = command.get_arguments();
    let settings = options.filter_map(|option| setting(option, &matches, &normalised));
    Ok(Parsed::Run(Box::new(arguments), settings.collect()))
}

/// Returns the output style of a launcher.
///
/// The name of the launcher decides, unless `--compat-output` or its variable requests torchrun's
/// style. A command line that cannot be parsed also gets a style, in which its error is printed.
pub(crate) fn face(
    launcher: Launcher,
    words: &[OsString],
    environment: &BTreeMap<OsString, OsString>,
) -> Face {
    let variable = environment.get(OsStr::new(RDZV_COMPAT_OUTPUT));
    let is_asked_for = variable.is_some_and(|value| value == "1") || asks_for_torchrun(words);
    match launcher {
        Launcher::Run if !is_asked_for => Face::Rdzv,
        _ => Face::Torchrun,
    }
}

fn asks_for_torchrun(words: &[OsString]) -> bool {
    let is_flag = |word: &OsString| word.to_string_lossy().replace('_', "-") == "--compat-output";
    // Most lines do not contain the flag, so they are not parsed here.
    words.iter().any(is_flag)
        && match normalise(&command(Launcher::Run), words, &BTreeMap::new()) {
            Ok(normalised) => {
                let mut flags = normalised.line.iter().take_while(|word| *word != "--");
                flags.any(is_flag)
            }
            Err(_) => true,
        }
}

/// Returns the cluster scheduler's values for flags that the line does not set.
fn ask_scheduler(
    matches: &ArgMatches,
    environment: &BTreeMap<OsString, OsString>,
) -> Result<Scheduled, Refusal> {
    let given = |id: &str| {
        let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
        let value = matches.get_raw(id).and_then(Iterator::last);
        value
            .filter(|_| is_given)
            .map(|value| value.to_string_lossy().into_owned())
    };
    let variable = environment.get(OsStr::new(RDZV_SCHEDULER));
    let variable = variable.map(|name| name.to_string_lossy().into_owned());
    let scheduler = match (given("scheduler"), variable) {
        (Some(scheduler), _) => scheduler,
        (None, Some(name)) if SCHEDULERS.contains(&name.as_str()) => name,
        (None, Some(name)) => {
            return Err(Refusal::Usage(format!(
                "{RDZV_SCHEDULER} is '{name}', but must be one of {}",
                SCHEDULERS.join(", ")
            )));
        }
        (None, None) => SCHEDULERS[0].to_owned(),
    };
    scheduled(&scheduler, environment, given)
}

/// Returns the error about unknown options; for `torchrun`, that of argparse.
fn unrecognised(launcher: Launcher, command: &Command, unknown: &[String]) -> String {
    if launcher != Launcher::Run {
        return format!("unrecognized arguments: {}", unknown.join(" "));
    }
    let first = unknown[0].split('=').next().unwrap_or_default();
    let flags: Vec<String> = command
        .get_arguments()
        .filter_map(|option| option.get_long().map(|name| format!("--{name}")))
        .collect();
    if let Some(flag) = OF_MPIRUN.iter().find(|(names, _)| names.contains(&first)) {
        return format!("rdzv run has no flag {first}, unlike mpirun: {}", flag.1);
    }
    let meant = did_you_mean(first, flags.iter().map(String::as_str));
    format!("rdzv run has no flag {first}{meant}; flags of the script go after its name")
}

/// Flags of mpirun, with those of rdzv in their place.
const OF_MPIRUN: [(&[&str], &str); 3] = [
    (
        &["-n", "-np", "-ppn", "-npernode", "--npernode"],
        "--nproc-per-node is the number of workers per node, and --nnodes is the number of nodes",
    ),
    (
        &["-N"],
        "--nnodes is the number of nodes, and --nproc-per-node is the number of workers per node",
    ),
    (
        &["-H", "--host", "--hosts", "--hostfile", "-f", "-hostfile"],
        "run the same command on each host, with --nnodes N --rdzv-backend c10d --rdzv-endpoint \
         HOST:PORT",
    ),
];

/// Refuses a value after a switch, such as `--standalone true`.
fn value_as_script(arguments: &RunArgs, normalised: &Normalised) -> Option<Refusal> {
    let switch = normalised.switch_before.as_deref()?;
    let script = arguments.training_script.first()?.to_str()?;
    let is_value = ["true", "false", "yes", "no", "on", "off", "0", "1"]
        .contains(&script.to_lowercase().as_str());
    let is_program = arguments.command.no_python || arguments.command.module;
    (is_value && !is_program && !Path::new(script).exists()).then(|| {
        Refusal::Usage(format!(
            "{switch} takes no value, so '{script}' after it was used as the script: remove it"
        ))
    })
}

fn setting(option: &Arg, matches: &ArgMatches, normalised: &Normalised) -> Option<Setting> {
    let id = option.get_id().as_str();
    let name = option.get_long().filter(|_| !QUESTIONS.contains(&id))?;
    let given = match (
        matches.value_source(id),
        normalised.from_environment.get(id),
    ) {
        (Some(ValueSource::CommandLine), Some(variable)) => Given::ByVariable(variable.clone()),
        (Some(ValueSource::CommandLine), None) if id == "rdzv_conf" => {
            let merged = normalised.merged.clone();
            merged.map_or(Given::Typed, Given::Merged)
        }
        (Some(ValueSource::CommandLine), None) => Given::Typed,
        _ => Given::Default,
    };
    let value = if matches!(option.get_action(), ArgAction::SetTrue) {
        let word = if matches.get_flag(id) { "yes" } else { "no" };
        Some(word.to_owned())
    } else {
        let last = matches.get_raw(id).and_then(Iterator::last);
        last.map(|value| value.to_string_lossy().into_owned())
    };
    Some(Setting {
        id: id.to_owned(),
        flag: format!("--{name}"),
        value,
        given,
    })
}

/// Returns clap's table of the flags.
///
/// Each flag has both spellings, and its help names its variable, if it has one.
pub(crate) fn command(launcher: Launcher) -> Command {
    // clap adds its help flag only during parsing, but `normalise` needs it before that.
    let help = Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help("Print this help and exit");
    let program = launcher.program();
    let empty = Command::new(program).disable_help_flag(true).arg(help);
    let command = match launcher {
        Launcher::LaunchCompat => LaunchArgs::augment_args(empty),
        _ => RunArgs::augment_args(empty),
    };
    command
        .bin_name(program)
        .about("Start and supervise the workers of this node")
        .override_usage(synopsis(program))
        .after_help(
            "Flags can also be written with underscores (--nproc_per_node), and abbreviated if the \
             abbreviation\nis unambiguous. A value on the command line overrides the variable in \
             brackets.",
        )
        .args_override_self(true)
        .term_width(100)
        .mut_args(with_underscores)
        .mut_args(with_variable)
}

fn with_underscores(option: Arg) -> Arg {
    match option.get_long() {
        Some(long) if long.contains('-') => {
            let underscored = long.replace('-', "_");
            option.alias(underscored)
        }
        _ => option,
    }
}

/// Adds the variable of the default to the help, and hides an empty default.
fn with_variable(option: Arg) -> Arg {
    let empty = option
        .get_default_values()
        .iter()
        .any(|text| text.is_empty());
    let option = option.hide_default_value(empty);
    let long = option.get_long_help().or_else(|| option.get_help());
    match (variable(&option), long.map(ToString::to_string)) {
        (Some(name), Some(text)) => option.long_help(format!("{text}\n\n[env: {name}]")),
        _ => option,
    }
}

/// Returns the line above a usage error.
pub(crate) fn usage(program: &str) -> String {
    format!("usage: {} (see {program} --help)", synopsis(program))
}

fn synopsis(program: &str) -> String {
    format!("{program} [OPTIONS] <TRAINING_SCRIPT> [ARGS]...")
}

/// Returns the error of `torchrun` for a line that clap does not accept.
fn usage_error(command: &Command, error: &clap::Error) -> Refusal {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    // clap names an option with its value, `--role <ROLE>` or `--explain[=<FORMAT>]`.
    let name = text(ContextKind::InvalidArg)
        .split([' ', '=', '['])
        .next()
        .unwrap_or_default()
        .trim_start_matches('-');
    let option = command
        .get_arguments()
        .find(|option| option.get_long() == Some(name));
    let value = text(ContextKind::InvalidValue);
    let allowed = |allowed: &str| format!(" is '{value}', but must be {allowed}");
    let (problem, plain) = match (error.kind(), option) {
        (ErrorKind::InvalidValue, Some(option)) => {
            let choices = option.get_possible_values();
            let choices: Vec<&str> = choices.iter().map(PossibleValue::get_name).collect();
            let meant = did_you_mean(value, choices.iter().copied());
            let choices = choices.join(", ");
            let quoted = format!("'{}'", choices.replace(", ", "', '"));
            (
                format!("invalid choice: '{value}' (choose from {quoted})"),
                allowed(&format!("one of {choices}{meant}")),
            )
        }
        (ErrorKind::ValueValidation, _) => {
            let problem = error.source().map(ToString::to_string).unwrap_or_default();
            let number = PARSED.iter().find(|(start, _)| problem.starts_with(start));
            let plain = match number {
                Some((_, what)) => allowed(what),
                None => format!(": {problem}"),
            };
            (problem, plain)
        }
        (ErrorKind::InvalidUtf8, _) => {
            let problem = "the value is not valid UTF-8".to_owned();
            let plain = format!(": {problem}");
            (problem, plain)
        }
        _ => (error.to_string(), format!(": {error}")),
    };
    match option {
        Some(option) => Refusal::parser(&display(option), &problem, &plain),
        None => Refusal::Usage(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str], variables: &[(&str, &str)]) -> Result<Parsed, Refusal> {
        let line: Vec<OsString> = line.iter().map(OsString::from).collect();
        let environment = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        parse(Launcher::Torchrun, &line, &environment)
    }

    fn run(line: &[&str]) -> RunArgs {
        match parsed(line, &[]) {
            Ok(Parsed::Run(arguments, _)) => arguments.run,
            other => panic!("{line:?} was read as {other:?}"),
        }
    }

    fn refusal(line: &[&str]) -> String {
        parsed(line, &[]).unwrap_err().to_string()
    }

    #[test]
    fn values_reach_their_fields() {
        let arguments = run(&[
            "--nproc_per_node",
            "4",
            "--max-restarts=-1",
            "-t",
            "0:1,1:2",
            "--rdzv-id",
            "",
            "-m",
            "pkg",
            "--x",
            "--",
            "y",
        ]);
        assert_eq!(arguments.count.nproc_per_node, "4");
        assert_eq!(arguments.max_restarts, -1);
        assert_eq!(arguments.output.tee, "0:1,1:2");
        assert_eq!(arguments.rendezvous.rdzv_id.as_deref(), Some(""));
        assert!(arguments.command.module);
        assert_eq!(arguments.training_script, ["pkg", "--x", "--", "y"]);
    }

    #[test]
    fn a_flag_that_rdzv_run_does_not_have_is_named_with_the_closest_one() {
        for (flag, text) in [
            (
                "--nproc-per-nodes=4",
                "rdzv run has no flag --nproc-per-nodes (did you mean '--nproc-per-node'?); flags of the \
                 script go after its name",
            ),
            (
                "--bogus",
                "rdzv run has no flag --bogus; flags of the script go after its name",
            ),
        ] {
            let line = [flag, "s.py"].map(OsString::from);
            let refusal = parse(Launcher::Run, &line, &BTreeMap::new()).unwrap_err();
            assert_eq!(refusal, Refusal::Usage(text.to_owned()));
        }
    }

    #[test]
    fn the_last_of_a_repeated_option_wins() {
        let arguments = run(&["--role", "a", "--role", "b", "-m", "-m", "s.py"]);
        assert_eq!(arguments.role, "b");
    }

    #[test]
    fn usage_errors_are_those_of_torchrun() {
        for (line, text) in [
            (
                &[][..],
                "the following arguments are required: training_script, training_script_args",
            ),
            (&["--bogus", "s.py"], "unrecognized arguments: --bogus"),
            (
                &["--max-restarts", "x", "s.py"],
                "argument --max-restarts/--max_restarts: invalid int value: 'x'",
            ),
            (
                &["--monitor-interval", "x", "s.py"],
                "argument --monitor-interval/--monitor_interval: invalid float value: 'x'",
            ),
            (
                &["--start-method", "x", "s.py"],
                "argument --start-method/--start_method: invalid choice: 'x' (choose from \
                 'spawn', 'fork', 'forkserver')",
            ),
        ] {
            assert_eq!(refusal(line), text);
        }
    }

    #[test]
    fn numbers_in_the_environment_are_usage_errors_too() {
        let environment = [("PET_MAX_RESTARTS", "x")];
        assert_eq!(
            parsed(&["s.py"], &environment).unwrap_err().to_string(),
            "argument --max-restarts/--max_restarts: invalid int value: 'x'"
        );
        assert!(parsed(&["--max-restarts", "1", "s.py"], &environment).is_ok());
    }

    #[test]
    fn only_the_older_launcher_knows_use_env() {
        let line = [OsString::from("--use_env"), OsString::from("s.py")];
        match parse(Launcher::LaunchCompat, &line, &BTreeMap::new()) {
            Ok(Parsed::Run(arguments, _)) => assert!(arguments.use_env),
            other => panic!("read as {other:?}"),
        }
        assert_eq!(
            refusal(&["--use-env", "s.py"]),
            "unrecognized arguments: --use-env"
        );
    }

    #[test]
    fn help_documents_every_flag_and_its_variable() {
        let Ok(Parsed::Help(text)) = parsed(&["--help"], &[]) else {
            panic!("no help")
        };
        insta::assert_snapshot!(text);
    }

    #[test]
    fn clap_accepts_the_table() {
        command(Launcher::Torchrun).debug_assert();
        command(Launcher::LaunchCompat).debug_assert();
    }

    fn found(line: &[&str], variables: &[(&str, &str)], id: &str) -> (Option<String>, Given) {
        let Ok(Parsed::Run(_, settings)) = parsed(line, variables) else {
            panic!("{line:?} does not run")
        };
        let setting = settings.into_iter().find(|setting| setting.id == id);
        let setting = setting.unwrap();
        (setting.value, setting.given)
    }

    #[test]
    fn a_value_is_typed_or_a_variables_or_a_default() {
        let some = |text: &str| Some(text.to_owned());
        let variables = [("PET_NNODES", "3"), ("PET_NO_PYTHON", "1")];
        let by = |name: &str| Given::ByVariable(name.to_owned());
        assert_eq!(
            found(&["--nnodes", "2", "s"], &variables, "nnodes"),
            (some("2"), Given::Typed)
        );
        assert_eq!(
            found(&["s", "--nnodes", "2"], &variables, "nnodes"),
            (some("3"), by("PET_NNODES"))
        );
        assert_eq!(
            found(&["s"], &variables, "no_python"),
            (some("yes"), by("PET_NO_PYTHON"))
        );
        assert_eq!(
            found(&["-m", "s"], &[], "module"),
            (some("yes"), Given::Typed)
        );
        assert_eq!(found(&["s"], &[], "nnodes"), (some("1:1"), Given::Default));
        assert_eq!(found(&["s"], &[], "master_port"), (None, Given::Default));
    }

    #[test]
    fn the_name_decides_unless_torchruns_form_is_asked_for() {
        let spoken = |launcher, line: &[&str], variable: Option<&str>| {
            let words: Vec<OsString> = line.iter().map(OsString::from).collect();
            let environment = variable.map(|value| (RDZV_COMPAT_OUTPUT.into(), value.into()));
            face(launcher, &words, &environment.into_iter().collect())
        };
        let run = Launcher::Run;
        assert_eq!(spoken(run, &["--nnodes", "2", "s.py"], None), Face::Rdzv);
        assert_eq!(spoken(run, &["s.py", "--compat-output"], None), Face::Rdzv);
        assert_eq!(
            spoken(run, &["--compat_output", "s.py"], None),
            Face::Torchrun
        );
        assert_eq!(
            spoken(run, &["--bogus", "--compat-output"], None),
            Face::Torchrun
        );
        assert_eq!(spoken(run, &["s.py"], Some("1")), Face::Torchrun);
        assert_eq!(spoken(run, &["s.py"], Some("0")), Face::Rdzv);
        for launcher in [Launcher::Torchrun, Launcher::LaunchCompat] {
            assert_eq!(spoken(launcher, &["s.py"], None), Face::Torchrun);
        }
    }
}
