//! `rdzv check`: checks before a job starts that its nodes can run it.

mod compare;
mod exchange;
mod facts;
mod gpus;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rdzv_console::quantity::count;
use rdzv_core::endpoint::Endpoint;
use rdzv_store::parse_size;

use self::compare::{Finding, alone, together};
use self::exchange::{Exchange, ExchangeNode};
use self::facts::{Facts, directories, gather};
use crate::exit::Exit;
use crate::launch::{Environment, host_name};
use crate::scheduler;
use crate::terminal::{complain, show};

/// Check that the nodes of a job can run it.
///
/// `srun rdzv check` checks all nodes of a Slurm step; elsewhere, the command checks this node. It
/// checks the space for temporary files, Python, and NVIDIA GPUs for uncorrected errors. On several
/// nodes, it also checks names, ports and clocks, and compares the versions of rdzv, Python and
/// PyTorch and the numbers of GPUs. The first node prints lines about each node and each finding.
/// The exit code is 0 without findings. Otherwise it is 1 on the first node and on each node that
/// has a finding.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Check only this node, even in a Slurm step; for --node-check.
    #[arg(long)]
    local: bool,

    /// Additional directory to check for free space (can be repeated).
    #[arg(long, value_name = "PATH")]
    dir: Vec<PathBuf>,

    /// Minimum free space in each directory.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    min_free: usize,

    /// Seconds to wait for all nodes to join the check.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
}

pub(super) fn run(arguments: &CheckArgs) -> ExitCode {
    let environment = Environment(std::env::vars_os().collect());
    let step = if arguments.local {
        Ok(scheduler::Scheduled::default())
    } else {
        scheduler::scheduled("auto", &environment.0, |_| None)
    };
    let step = match step {
        Ok(step) => step,
        Err(refusal) => {
            // The remedy is for `rdzv run`.
            let problem = refusal.plain().lines().next().unwrap_or_default();
            complain(&format!(
                "rdzv check: {problem}\n\
                 help: run it with srun --ntasks-per-node=1, or specify --local to check only this \
                 node"
            ));
            return Exit::Usage.into();
        }
    };
    let paths = directories(&environment, &arguments.dir);
    let step_node = step.step_node.as_ref();
    let name = step_node.map_or_else(host_name, |step_node| step_node.node.clone());
    let mut facts = gather(name, &environment, &paths);
    let least_free = u64::try_from(arguments.min_free).unwrap_or(u64::MAX);
    let findings = match exchange_node_of(&step) {
        None => {
            let findings = alone(&facts, least_free);
            report(&[&facts], &[], &findings);
            findings.len()
        }
        Some((node, names)) => {
            let limit = Duration::from_secs(arguments.timeout);
            match compare_nodes(&node, &names, &mut facts, limit, least_free) {
                Ok(findings) => findings,
                Err(error) => {
                    complain(&format!("rdzv check: {}: {error}", facts.node));
                    1
                }
            }
        }
    };
    match findings {
        0 => Exit::Success.into(),
        _ => Exit::Failure.into(),
    }
}

/// Returns the endpoint and this node's rank in a step, and all node names.
fn exchange_node_of(step: &scheduler::Scheduled) -> Option<(ExchangeNode, Vec<String>)> {
    let step_node = step.step_node.as_ref()?;
    let value = |id: &str| step.values.iter().find(|value| value.id == id);
    let endpoint = Endpoint::parse(&value("rdzv_endpoint")?.value, 0).ok()?;
    let exchange_node = ExchangeNode {
        is_host: endpoint.host == step_node.node,
        endpoint,
        rank: step_node.task,
        nodes: step_node.names.len(),
    };
    Some((exchange_node, step_node.names.clone()))
}

/// Compares the nodes.
///
/// Returns the number of findings that decides this node's exit code.
fn compare_nodes(
    node: &ExchangeNode,
    names: &[String],
    facts: &mut Facts,
    limit: Duration,
    least_free: u64,
) -> Result<usize, rdzv_store::StoreError> {
    let mut exchange = Exchange::begin(node, facts, limit)?;
    let all = exchange.facts(names);
    exchange.look(&all)?;
    if !node.is_host {
        let found = exchange.findings()?;
        return Ok(found.get(&facts.node).copied().unwrap_or(0));
    }
    let seen = exchange.seen(&all);
    let present: Vec<Facts> = all.iter().flatten().cloned().collect();
    let seen = all.iter().zip(seen);
    let seen = seen.filter_map(|(facts, seen)| Some((facts.as_ref()?.node.clone(), seen?)));
    let each = present.iter().flat_map(|facts| alone(facts, least_free));
    let mut findings: Vec<Finding> = each.collect();
    findings.extend(together(&present, &seen.collect()));
    let missing = names.iter().zip(&all).filter(|(_, facts)| facts.is_none());
    let missing: Vec<&str> = missing.map(|(name, _)| name.as_str()).collect();
    report(&present.iter().collect::<Vec<_>>(), &missing, &findings);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for finding in &findings {
        *counts.entry(finding.node.clone()).or_default() += 1;
    }
    exchange.conclude(&counts, &all)?;
    Ok(findings.len() + missing.len())
}

/// Prints lines about each node and each finding, and a summary.
fn report(all: &[&Facts], missing: &[&str], findings: &[Finding]) {
    let mut text = String::new();
    for facts in all {
        let python = match &facts.python {
            Ok(python) if python.torch.is_empty() => format!("Python {}", python.version),
            Ok(python) => format!("Python {}, PyTorch {}", python.version, python.torch),
            Err(_) => "no Python".to_owned(),
        };
        let free = facts.disks.iter().filter_map(|(path, free)| {
            let free = free.as_ref().ok()?;
            Some(format!("{} MiB free in {}", free >> 20, path.display()))
        });
        let free: Vec<String> = free.collect();
        text += &format!(
            "{}: rdzv {}, {python}, {}, {}\n",
            facts.node,
            facts.rdzv,
            count(facts.gpus, "GPU"),
            free.join(", ")
        );
        if !facts.gpu_names.is_empty() {
            text += &format!("{}: {}\n", facts.node, facts.gpu_names);
        }
    }
    for node in missing {
        text += &format!("{node}: the node did not join the check\n");
    }
    for Finding { node, text: what } in findings {
        text += &format!("problem on {node}: {what}\n");
    }
    let wrong = findings.len() + missing.len();
    text += &match wrong {
        0 => format!(
            "{} of {} passed the check\n",
            all.len(),
            count(all.len(), "node")
        ),
        _ => {
            let nodes = count(all.len() + missing.len(), "node");
            format!("{} on {nodes}\n", count(wrong, "problem"))
        }
    };
    show(&text);
}
