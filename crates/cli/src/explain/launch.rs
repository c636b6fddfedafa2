//! Which lines an explanation has.

use rdzv_agent::{LogBase, LogPlan, RankSelection, StreamSelection};
use rdzv_core::env;
use rdzv_core::signal::in_words;

use super::draft::{Because, Draft};
use super::{Explanation, meeting, watching, workers};
use crate::args::{RunArgs, Setting};
use crate::exit::Refusal;
use crate::resolve::{Environment, Launch, Machine};

/// What is to be explained.
pub(crate) struct Question<'q> {
    /// The flags of the line, and who gave them their values.
    pub(crate) settings: Vec<Setting>,
    /// The same, typed.
    pub(crate) arguments: &'q RunArgs,
    /// What they mean here.
    pub(crate) launch: &'q Launch,
    /// The variables.
    pub(crate) environment: &'q Environment,
    /// This host.
    pub(crate) machine: &'q dyn Machine,
}

/// Puts a launch in words. Fails as the launch would fail before the first worker.
pub(crate) fn explain(question: Question<'_>) -> Result<Explanation, Refusal> {
    let Question {
        settings,
        arguments,
        launch,
        environment,
        machine,
    } = question;
    let mut draft = Draft::new(settings);
    size(&mut draft, launch);
    meeting::lines(&mut draft, arguments, launch, machine);
    ends(&mut draft, launch, environment);
    output(&mut draft, &launch.plan.logs, environment);
    watching::hangs(&mut draft, launch, environment);
    watching::observers(&mut draft, launch);
    workers::command(&mut draft, launch)?;
    workers::binding(&mut draft, launch);
    workers::environment(&mut draft, launch, environment)?;
    // Spoken of with the command.
    draft.told(&["module", "no_python", "run_path"]);
    Ok(Explanation {
        version: 1,
        sections: draft.finish(),
    })
}

fn size(draft: &mut Draft, launch: &Launch) {
    let (least, most) = launch.reasons.nodes;
    draft.section("Nodes and workers");
    let nodes = if least == most {
        most.to_string()
    } else {
        format!("{least} to {most}")
    };
    draft.setting("nodes", "nnodes", nodes, "");
    let workers = launch.plan.local_world_size.to_string();
    draft.setting(
        "workers on this node",
        "nproc_per_node",
        workers,
        &launch.reasons.workers,
    );
    draft.flag("role", "role");
}

fn ends(draft: &mut Draft, launch: &Launch, environment: &Environment) {
    let plan = &launch.plan;
    draft.section("Restarts and ends");
    draft.setting(
        "restarts after failures",
        "max_restarts",
        plan.max_restarts.to_string(),
        "",
    );
    let grace = format!("{} s", plan.shutdown_timeout.as_secs());
    let from_variable = !draft.is_given("shutdown_timeout")
        && environment
            .text(env::TORCH_ELASTIC_SHUTDOWN_TIMEOUT)
            .is_some();
    let because = draft.given("shutdown_timeout");
    let because = if from_variable {
        Because::variable(env::TORCH_ELASTIC_SHUTDOWN_TIMEOUT)
    } else {
        because
    };
    draft.line(
        "grace before SIGKILL",
        grace,
        because.and("on every path: signals, restarts, failures"),
    );
    let names = plan.signals.iter().copied().map(in_words);
    let names: Vec<String> = names.collect();
    draft.setting(
        "signals passed on",
        "signals_to_handle",
        names.join(", "),
        "",
    );
}

fn output(draft: &mut Draft, logs: &LogPlan, environment: &Environment) {
    draft.section("Output");
    let (value, reason) = match &logs.base {
        LogBase::Directory(path) => (path.display().to_string(), "a new directory in it per run"),
        LogBase::Temporary(path) => (
            format!("a new one in {}", path.display()),
            "removed at the end if it holds no output",
        ),
        LogBase::Discard => ("none".to_owned(), "no files, no error files"),
    };
    draft.setting("log directory", "log_dir", value, reason);
    draft.setting("to files only", "redirects", streams(&logs.redirects), "");
    draft.setting("to files and console", "tee", streams(&logs.tee), "");
    let template = env::TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE;
    let because = draft.given("log_line_prefix_template");
    let is_flags = draft.is_given("log_line_prefix_template");
    let because = match environment.filled(template) {
        Some(_) if !is_flags => Because::variable(template),
        _ => because,
    };
    draft.line("prefix of teed lines", &logs.prefix_template, because);
    let ranks = match &logs.console_ranks {
        None => "all".to_owned(),
        Some(ranks) => {
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            ranks.join(", ")
        }
    };
    draft.setting(
        "local ranks on the console",
        "local_ranks_filter",
        ranks,
        "",
    );
    draft.flag("stdout lines copied", "duplicate_stdout_filters");
    draft.flag("stderr lines copied", "duplicate_stderr_filters");
    draft.flag("equal lines collapsed", "collapse");
}

fn streams(selection: &RankSelection) -> String {
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
