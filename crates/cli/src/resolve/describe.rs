//! The launch in words, for `LOGLEVEL=INFO`: the fields that the reference lists, with the values in
//! effect.

use rdzv_agent::{LaunchPlan, LogBase, RendezvousPlan};

use super::nodes::Nodes;
use crate::args::RunArgs;

/// One line per field.
pub(super) fn describe(arguments: &RunArgs, nodes: &Nodes, plan: &LaunchPlan) -> String {
    let (endpoint, timeout) = match &plan.rendezvous {
        RendezvousPlan::Local => ("none needed".to_owned(), String::new()),
        RendezvousPlan::Static {
            endpoint, timeout, ..
        } => (
            endpoint.to_string(),
            format!("timeout={}", timeout.as_secs()),
        ),
        RendezvousPlan::Dynamic { parameters } => {
            let options = parameters.config.iter();
            let options: Vec<String> = options
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            (parameters.endpoint.clone(), options.join(","))
        }
    };
    let log_dir = match &plan.logs.base {
        LogBase::Directory(path) => path.display().to_string(),
        LogBase::Temporary(path) => format!("a temporary one in {}", path.display()),
        LogBase::Discard => "none".to_owned(),
    };
    let fields = [
        ("entrypoint", plan.entrypoint.name.clone()),
        ("min_nodes", nodes.least.to_string()),
        ("max_nodes", nodes.most.to_string()),
        ("nproc_per_node", plan.local_world_size.to_string()),
        ("run_id", plan.run_id.to_string()),
        ("rdzv_backend", plan.rendezvous_backend.clone()),
        ("rdzv_endpoint", endpoint),
        ("rdzv_configs", timeout),
        ("max_restarts", plan.max_restarts.to_string()),
        ("monitor_interval", arguments.monitor_interval.to_string()),
        (
            "shutdown_timeout",
            plan.shutdown_timeout.as_secs().to_string(),
        ),
        ("log_dir", log_dir),
        // The reference's library has a setting of this name, its launcher no flag.
        ("metrics_cfg", "{}".to_owned()),
        ("event_log_handler", arguments.event_log_handler.clone()),
        (
            "numa_options",
            arguments
                .numa_binding
                .clone()
                .unwrap_or_else(|| "None".to_owned()),
        ),
        ("signals_to_handle", plan.signals_text.clone()),
        (
            "duplicate_stdout_filters",
            plan.logs.stdout_filters.join(","),
        ),
        (
            "duplicate_stderr_filters",
            plan.logs.stderr_filters.join(","),
        ),
    ];
    let lines = fields.map(|(name, value)| format!("\n  {name:<24} : {value}"));
    format!("launch configuration:{}", lines.concat())
}
