//! Where the workers' output goes: `-r`, `-t`, `--log-dir` and the filters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rdzv_agent::{LogBase, LogPlan, RankSelection, StreamSelection};
use rdzv_core::env::TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE;

use super::{Environment, Machine};
use crate::args::RunArgs;
use crate::args::number::parse_int;
use crate::exit::Raised;

/// Prefix of teed lines if nothing else is said.
const PREFIX: &str = "[${role_name}${local_rank}]:";

/// The `--log-dir` that turns files off.
const NOWHERE: &str = "/dev/null";

/// Reads everything that concerns output.
pub(super) fn plan(
    arguments: &RunArgs,
    environment: &Environment,
    machine: &dyn Machine,
) -> Result<LogPlan, Raised> {
    let prefix_template = Some(arguments.log_line_prefix_template.clone())
        .filter(|template| !template.is_empty())
        .or_else(|| environment.filled(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE))
        .unwrap_or_else(|| PREFIX.to_owned());
    let console_ranks = console_ranks(&arguments.local_ranks_filter)?;
    if let Some(name) = arguments
        .logs_specs
        .as_deref()
        .filter(|name| *name != "default")
    {
        return Err(Raised::value_error(format!(
            "Could not find entrypoint under 'torchrun.logs_specs[{name}]' key"
        )));
    }
    let redirects = selection(&arguments.redirects)?;
    let tee = match arguments.console.collapse && arguments.tee == "0" {
        true => "3",
        false => &arguments.tee,
    };
    let tee = selection(tee)?;
    let stdout_filters = needles(arguments.duplicate_stdout_filters.as_deref());
    let stderr_filters = needles(arguments.duplicate_stderr_filters.as_deref());
    let base = base(arguments, environment, machine)?;
    if base == LogBase::Discard {
        let copies = [(&stdout_filters, "stdout"), (&stderr_filters, "stderr")];
        if let Some((_, stream)) = copies.iter().find(|(needles, _)| !needles.is_empty()) {
            return Err(Raised::new(
                "NotADirectoryError",
                format!("[Errno 20] Not a directory: '{NOWHERE}/filtered_{stream}.log'"),
            ));
        }
    }
    Ok(LogPlan {
        base,
        redirects,
        tee,
        console_ranks,
        stdout_filters,
        stderr_filters,
        prefix_template,
        collapse: arguments.console.collapse,
    })
}

/// Where files go that nobody asked for, as Python decides it.
pub(super) fn temporary_directory(environment: &Environment, machine: &dyn Machine) -> PathBuf {
    let temporary = ["TMPDIR", "TEMP", "TMP"]
        .into_iter()
        .find_map(|name| environment.filled(name))
        .unwrap_or_else(|| "/tmp".to_owned());
    machine.working_directory().join(temporary)
}

/// Made absolute, because workers may change their directory before they write an error file.
fn base(
    arguments: &RunArgs,
    environment: &Environment,
    machine: &dyn Machine,
) -> Result<LogBase, Raised> {
    let given = arguments.log_dir.as_deref().filter(|dir| !dir.is_empty());
    let Some(given) = given else {
        return Ok(LogBase::Temporary(temporary_directory(
            environment,
            machine,
        )));
    };
    if given == NOWHERE {
        return Ok(LogBase::Discard);
    }
    let path: PathBuf = machine.working_directory().join(given);
    if machine.is_file(&path) {
        return Err(Raised::new(
            "NotADirectoryError",
            format!("log_dir: {} is a file", given.to_string_lossy()),
        ));
    }
    Ok(LogBase::Directory(path))
}

/// Reads `-r` and `-t`: one digit for all ranks, or `rank:digit` pairs. Unlike the reference's,
/// ranks may have several digits.
fn selection(text: &str) -> Result<RankSelection, Raised> {
    let bad = || {
        Raised::value_error(format!(
            r"{text} does not match: <^[0123]$> or <^(\d:[0123],)*(\d:[0123])$>"
        ))
    };
    if let Some(all) = streams(text) {
        return Ok(RankSelection::All(all));
    }
    let mut each = BTreeMap::new();
    for pair in text.split(',') {
        let (rank, digit) = pair.split_once(':').ok_or_else(bad)?;
        if rank.is_empty() || !rank.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        let rank = rank.parse().map_err(|_| bad())?;
        each.insert(rank, streams(digit).ok_or_else(bad)?);
    }
    Ok(RankSelection::Each(each))
}

fn streams(digit: &str) -> Option<StreamSelection> {
    let (stdout, stderr) = match digit {
        "0" => (false, false),
        "1" => (true, false),
        "2" => (false, true),
        "3" => (true, true),
        _ => return None,
    };
    Some(StreamSelection { stdout, stderr })
}

/// Reads `--local-ranks-filter`. Numbers that are no local rank are ignored.
fn console_ranks(text: &str) -> Result<Option<BTreeSet<u32>>, Raised> {
    if text.is_empty() {
        return Ok(None);
    }
    let mut ranks = BTreeSet::new();
    for part in text.split(',') {
        let number = parse_int(part).ok_or_else(|| {
            Raised::value_error(
                "--local_ranks_filter must be a comma-separated list of integers e.g. \
                 --local_ranks_filter=0,1,2",
            )
        })?;
        ranks.extend(u32::try_from(number));
    }
    Ok(Some(ranks))
}

/// Splits at commas; a double comma is a comma. Empty text is one empty needle, which every line
/// contains.
fn needles(text: Option<&str>) -> Vec<String> {
    let Some(text) = text else { return Vec::new() };
    let mut needles = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == ',' && letters.next_if_eq(&',').is_none() {
            needles.push(String::new());
        } else if let Some(needle) = needles.last_mut() {
            needle.push(letter);
        }
    }
    needles
}
