//! The output of workers: `-r`, `-t`, `--log-dir` and the filters.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use clap::Args;
use rdzv_agent::config::{LogBase, LogPlan, RankSelection, StreamSelection};
use rdzv_core::env::TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE;

use super::context::{Context, Environment};
use crate::exit::Raised;
use crate::explanation::{Draft, Provenance};
use crate::number::parse_int;

/// Default prefix of teed lines.
const PREFIX: &str = "[${role_name}${local_rank}]:";

/// Value of `--log-dir` that turns files off.
const NOWHERE: &str = "/dev/null";

/// Flags for the output of workers.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct OutputArgs {
    /// Directory for the workers' output and error files.
    ///
    /// Each run creates a new directory in it, named after the run id. The default is below TMPDIR.
    /// `/dev/null` turns all files off, and with them -r, -t and --local-ranks-filter.
    #[arg(long, value_name = "DIR")]
    log_dir: Option<OsString>,

    /// Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both.
    ///
    /// One digit for all workers, or by local rank: `0:3,12:1`.
    #[arg(short, long, value_name = "STREAMS", default_value = "0")]
    redirects: String,

    /// Streams that go to files and, prefixed, to the console; format as for -r.
    #[arg(short, long, value_name = "STREAMS", default_value = "0")]
    pub(crate) tee: String,

    /// Prefix of teed lines.
    ///
    /// Macros: ${role_name}, ${local_rank}, ${rank}, ${hostname}. The default is the value of
    /// TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, or `[${role_name}${local_rank}]:`.
    #[arg(long, value_name = "TEMPLATE", default_value = "")]
    log_line_prefix_template: String,

    /// Local ranks that may write to the console, such as 0,2,3 (default: all)
    ///
    /// Output of other ranks is in their files, if they have any. Otherwise rdzv keeps the last 64
    /// KiB of each stream, and shows them if the worker fails.
    #[arg(long, value_name = "RANKS", default_value = "")]
    local_ranks_filter: String,

    /// Copy teed stdout lines with one of these texts to filtered_stdout.log.
    ///
    /// Separate the texts by commas. Write a comma in a text as two commas.
    #[arg(long, value_name = "TEXT,...")]
    duplicate_stdout_filters: Option<String>,

    /// Copy teed stderr lines with one of these texts to filtered_stderr.log.
    ///
    /// Separate the texts by commas. Write a comma in a text as two commas.
    #[arg(long, value_name = "TEXT,...")]
    duplicate_stderr_filters: Option<String>,
}

impl OutputArgs {
    pub(super) fn resolve(
        &self,
        collapse: bool,
        logs_specs: Option<&str>,
        context: &Context<'_>,
    ) -> Result<LogPlan, Raised> {
        let template = &self.log_line_prefix_template;
        let template = Some(template.clone()).filter(|template| !template.is_empty());
        let prefix_template = template
            .or_else(|| {
                let variable = TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE;
                context.environment.filled(variable)
            })
            .unwrap_or_else(|| PREFIX.to_owned());
        let console_ranks = console_ranks(&self.local_ranks_filter)?;
        if let Some(name) = logs_specs.filter(|name| *name != "default") {
            let raised = Raised::value_error(format!(
                "Could not find entrypoint under 'torchrun.logs_specs[{name}]' key"
            ));
            return Err(raised.plainly(format!(
                "--logs-specs is '{name}', but rdzv has no plug-ins for logs: omit --logs-specs"
            )));
        }
        let redirects = selection("--redirects", &self.redirects)?;
        let tee = selection(
            "--tee",
            match &*self.tee {
                "0" if collapse => "3",
                tee => tee,
            },
        )?;
        let stdout_filters = needles(self.duplicate_stdout_filters.as_deref());
        let stderr_filters = needles(self.duplicate_stderr_filters.as_deref());
        let base = self.base(context)?;
        if base == LogBase::Discard {
            let copies = [(&stdout_filters, "stdout"), (&stderr_filters, "stderr")];
            if let Some((_, stream)) = copies.iter().find(|(needles, _)| !needles.is_empty()) {
                let raised = Raised::new(
                    "NotADirectoryError",
                    format!("[Errno 20] Not a directory: '{NOWHERE}/filtered_{stream}.log'"),
                );
                return Err(raised.plainly(format!(
                    "--duplicate-{stream}-filters needs a directory for the copies, but --log-dir \
                     is {NOWHERE}"
                )));
            }
        }
        Ok(LogPlan {
            redirects,
            tee,
            console_ranks,
            stdout_filters,
            stderr_filters,
            prefix_template,
            collapse,
            ..LogPlan::new(base)
        })
    }

    /// Returns the location of the log files; a directory is an absolute path.
    ///
    /// Workers may change their directory before they write an error file.
    fn base(&self, context: &Context<'_>) -> Result<LogBase, Raised> {
        let given = self.log_dir.as_deref().filter(|dir| !dir.is_empty());
        let Some(given) = given else {
            return Ok(LogBase::Temporary(context.temporary_directory()));
        };
        if given == NOWHERE {
            return Ok(LogBase::Discard);
        }
        let path = context.absolute(given);
        if context.machine.is_file(&path) {
            let given = given.to_string_lossy();
            let raised = Raised::new("NotADirectoryError", format!("log_dir: {given} is a file"));
            return Err(raised.plainly(format!(
                "--log-dir is '{given}', which is a file, but must be a directory"
            )));
        }
        Ok(LogBase::Directory(path))
    }
}

/// Parses `-r` and `-t`: one digit for all ranks, or `rank:digit` pairs.
///
/// Unlike in `torchrun`, ranks may have several digits.
fn selection(flag: &str, text: &str) -> Result<RankSelection, Raised> {
    let bad = || {
        Raised::value_error(format!(
            r"{text} does not match: <^[0123]$> or <^(\d:[0123],)*(\d:[0123])$>"
        ))
        .plainly(format!(
            "{flag} is '{text}', but must be 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for all \
             workers or by local rank as in 0:3,1:2"
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

/// Parses `--local-ranks-filter`. Negative numbers are ignored.
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
            .plainly(format!(
                "--local-ranks-filter is '{text}', but must be a comma-separated list of local \
                 ranks, such as 0,2,3"
            ))
        })?;
        ranks.extend(u32::try_from(number));
    }
    Ok(Some(ranks))
}

/// Splits a text at commas; a double comma is a comma in a needle.
///
/// An empty text is one empty needle, which every line contains.
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

pub(super) fn explain(draft: &mut Draft, logs: &LogPlan, environment: &Environment) {
    draft.section("Output");
    let (value, reason) = match &logs.base {
        LogBase::Directory(path) => (
            path.display().to_string(),
            "a new subdirectory for each run",
        ),
        LogBase::Temporary(path) => (
            format!("a new directory in {}", path.display()),
            "removed at the end if it contains no output",
        ),
        LogBase::Discard => ("none".to_owned(), "no files, no error files"),
    };
    draft.setting("log directory", "log_dir", value, reason);
    let (redirects, tee) = (in_words(&logs.redirects), in_words(&logs.tee));
    draft.setting("to files only", "redirects", redirects, "");
    draft.setting("to files and console", "tee", tee, "");
    let template = TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE;
    let mut provenance = draft.given("log_line_prefix_template");
    if !draft.is_given("log_line_prefix_template") && environment.filled(template).is_some() {
        provenance = Provenance::variable(template);
    }
    draft.line("prefix of teed lines", &logs.prefix_template, provenance);
    let ranks = logs.console_ranks.as_ref().map_or_else(
        || "all".to_owned(),
        |ranks| {
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            ranks.join(", ")
        },
    );
    let name = "local ranks on the console";
    draft.setting(name, "local_ranks_filter", ranks, "");
    draft.flag("stdout lines copied", "duplicate_stdout_filters");
    draft.flag("stderr lines copied", "duplicate_stderr_filters");
    draft.flag("equal lines collapsed", "collapse");
    draft.flag("on a terminal", "ui");
    draft.flag("no pseudo-terminals", "no_pty");
}

fn in_words(selection: &RankSelection) -> String {
    let word = |streams: &StreamSelection| match (streams.stdout, streams.stderr) {
        (false, false) => "nothing",
        (true, false) => "stdout",
        (false, true) => "stderr",
        (true, true) => "stdout and stderr",
    };
    match selection {
        RankSelection::All(streams) => word(streams).to_owned(),
        RankSelection::Each(map) => {
            let each = map.iter();
            let each: Vec<String> = each
                .map(|(rank, streams)| format!("{} of local rank {rank}", word(streams)))
                .collect();
            each.join(", ")
        }
    }
}
