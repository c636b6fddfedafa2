//! The help of `rdzv run`.
//!
//! `-h` prints one page with the most common flags, and `--help` prints all flags. Both print the
//! flags in groups. The help of the link `torchrun` has torchrun's flags in one list, in the order
//! of the original. `rdzv help --json` prints the flags for programs.

use std::any::TypeId;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValue, StyledStr};
use clap::{Arg, Command};
use serde_json::json;

use super::conventions::variable;

/// Groups of torchrun's flags and of `--collapse`, by id.
///
/// rdzv's other flags already have a heading.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Nodes and workers",
        &[
            "nnodes",
            "nproc_per_node",
            "standalone",
            "role",
            "numa_binding",
            "virtual_local_rank",
        ],
    ),
    (
        "Rendezvous of the nodes",
        &[
            "rdzv_backend",
            "rdzv_endpoint",
            "rdzv_id",
            "rdzv_conf",
            "node_rank",
            "master_addr",
            "master_port",
            "local_addr",
        ],
    ),
    (
        "Worker program",
        &["module", "no_python", "run_path", "start_method"],
    ),
    (
        "Output",
        &[
            "log_dir",
            "redirects",
            "tee",
            "log_line_prefix_template",
            "local_ranks_filter",
            "duplicate_stdout_filters",
            "duplicate_stderr_filters",
            "logs_specs",
            "collapse",
        ],
    ),
    (
        "Restarts",
        &[
            "max_restarts",
            "signals_to_handle",
            "shutdown_timeout",
            "monitor_interval",
        ],
    ),
    ("Watching a run", &["event_log_handler"]),
];

/// Flags on the page of `-h`.
const SHORT: [&str; 19] = [
    "help",
    "nnodes",
    "nproc_per_node",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "node_rank",
    "master_addr",
    "module",
    "no_python",
    "log_dir",
    "redirects",
    "tee",
    "max_restarts",
    "explain",
    "hang_timeout",
    "report",
    "exit_code",
    "token_file",
];

/// Shorter value names, for the page of `-h`.
const NAMES: [(&str, &str); 4] = [
    ("nproc_per_node", "N|cpu|gpu"),
    ("exit_code", "WHOSE"),
    ("redirects", "0-3"),
    ("tee", "0-3"),
];

const EXAMPLES: &str = "\
Examples:
  rdzv run --nproc-per-node 8 train.py --lr 0.1
  rdzv run --nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint head:29400 train.py
  rdzv run --nproc-per-node gpu --max-restarts 3 --hang-timeout 600 -m my.train";

/// Returns the command with its flags in groups.
pub(crate) fn grouped(command: Command) -> Command {
    let heading = |option: Arg| {
        let id = option.get_id().as_str();
        let group = GROUPS.iter().find(|(_, ids)| ids.contains(&id));
        match group {
            Some((heading, _)) => option.help_heading(*heading),
            None => option,
        }
    };
    let more = "Flags can also be written with underscores, and abbreviated if the abbreviation is unambiguous. A value on \
        the command line overrides the variable in brackets; `rdzv run` merges the values of \
        --rdzv-conf. `rdzv help` lists more pages.";
    command
        .mut_args(heading)
        .after_long_help(format!("{EXAMPLES}\n\n{more}"))
}

/// Returns the page of `-h` if `is_short`, and the text of `--help` otherwise.
pub(super) fn text(command: Command, is_short: bool) -> String {
    let command = grouped(command);
    if !is_short {
        let mut command = command.term_width(100);
        return command.render_long_help().to_string();
    }
    let short = |option: Arg| {
        let id = option.get_id().as_str();
        let name = NAMES.iter().find(|(known, _)| *known == id);
        let hidden = !SHORT.contains(&id) && !option.is_positional();
        let option = match name {
            Some((_, name)) => option.value_name(*name),
            None => option,
        };
        let has_value = option.get_action().takes_values();
        option
            .hide(hidden)
            .hide_possible_values(has_value)
            .hide_default_value(has_value)
    };
    let mut command = command.mut_args(short).term_width(80).after_help(format!(
        "{EXAMPLES}\n\n--help shows all flags, and `rdzv help` lists more pages."
    ));
    command.render_help().to_string()
}

/// Returns the table of the flags as JSON, for programs with the same flags.
pub(crate) fn json(command: Command) -> String {
    let flags: Vec<_> = grouped(command).get_arguments().filter_map(flag).collect();
    serde_json::to_string_pretty(&flags).expect("texts are JSON") + "\n"
}

fn flag(option: &Arg) -> Option<serde_json::Value> {
    let parsed = option.get_value_parser().type_id();
    let kinds = [
        (TypeId::of::<i64>(), "integer"),
        (TypeId::of::<u32>(), "integer"),
        (TypeId::of::<u8>(), "integer"),
        (TypeId::of::<f64>(), "number"),
        (TypeId::of::<OsString>(), "path"),
        (TypeId::of::<PathBuf>(), "path"),
    ];
    let has_value = option.get_action().takes_values();
    let kind = match kinds.iter().find(|(known, _)| parsed == *known) {
        _ if !has_value => "switch",
        Some((_, kind)) => kind,
        None => "text",
    };
    let values = option.get_value_names().filter(|_| has_value);
    let default = option.get_default_values().first().filter(|_| has_value);
    let choices = option.get_possible_values();
    let choices = choices.iter().filter(|_| has_value);
    let text = |text: &StyledStr| text.to_string();
    Some(json!({
        "name": option.get_id().as_str(),
        "flag": format!("--{}", option.get_long()?),
        "kind": kind,
        "value": values.map(|names| names[0].as_str()),
        "choices": choices.map(PossibleValue::get_name).collect::<Vec<_>>(),
        "default": default.map(|text| text.to_string_lossy()),
        "variable": variable(option),
        "heading": option.get_help_heading(),
        "help": option.get_help().map(text),
        "details": option.get_long_help().map(text),
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;

    use super::super::{Launcher, Parsed, command, parse};
    use super::*;

    fn help(flag: &str) -> String {
        match parse(Launcher::Run, &[OsString::from(flag)], &BTreeMap::new()) {
            Ok(Parsed::Help(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_short_help_is_one_page_of_80_columns_with_three_examples() {
        let text = help("-h");
        assert!(text.lines().count() <= 66, "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_eq!(text.matches("\n  rdzv run ").count(), 3, "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_long_help_has_every_flag_in_a_group() {
        let text = help("--help");
        let (_, ungrouped) = text.split_once("\nOptions:\n").unwrap();
        let (ungrouped, _) = ungrouped.split_once("\n\n").unwrap();
        assert_eq!(
            ungrouped.trim(),
            "-h, --help\n          Print this help and exit",
            "{text}"
        );
        for option in command(Launcher::Run).get_arguments() {
            if let Some(name) = option.get_long() {
                assert!(text.contains(&format!("--{name}")), "{name}");
            }
        }
    }

    #[test]
    fn the_groups_name_flags_that_there_are() {
        let command = command(Launcher::Run);
        let known = |id: &str| command.get_arguments().any(|option| option.get_id() == id);
        let groups = GROUPS.iter().flat_map(|(_, ids)| ids.iter().copied());
        for id in groups.chain(SHORT).chain(NAMES.map(|(id, _)| id)) {
            assert!(known(id), "{id}");
        }
    }
}
