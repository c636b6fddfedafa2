//! The numbers of nodes and workers.

use std::ffi::OsStr;
use std::path::Path;

use clap::Args;
use rdzv_agent_proto::topology::{CpuLimit, Vendor};
use rdzv_console::quantity::count;
use rdzv_core::env::OMP_NUM_THREADS;

use super::context::{Context, Machine, Note};
use crate::exit::{Raised, Refusal};
use crate::explanation::{Draft, Provenance};
use crate::number::{int_or_raise, parse_int};
use crate::suggestion::did_you_mean;

/// Flags for the numbers of nodes and workers.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct CountArgs {
    /// Number of nodes, or MIN:MAX for an elastic job.
    ///
    /// `N` means `N:N`. Both numbers must be positive, and MIN at most MAX. Static rendezvous uses
    /// only MAX. The nodes of --spares come in addition.
    #[arg(long, value_name = "N|MIN:MAX", default_value = "1:1")]
    nnodes: String,

    /// Workers per node: a number, cpu, gpu, xpu or auto.
    ///
    /// `cpu` is the number of processors that this process may use: its affinity mask, or fewer if
    /// a limit of its control group (cpu.max) allows less time. `gpu` is the number of visible
    /// NVIDIA or AMD devices. `xpu` is the number of Intel devices. `auto` is the first of `gpu`,
    /// `xpu` and `cpu` that is available. With more than one worker, OMP_NUM_THREADS is set to 1
    /// unless it is set already.
    #[arg(long, value_name = "N|cpu|gpu|xpu|auto", default_value = "1")]
    pub(crate) nproc_per_node: String,
}

/// Range of the number of nodes, `1 <= least <= most`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Nodes {
    /// Number of nodes with which a job can start.
    pub(super) least: u32,
    pub(super) most: u32,
    /// Value of the flag, as specified.
    pub(super) text: String,
}

impl Nodes {
    /// `true` if the job can use all of `there` available nodes.
    pub(super) fn are_all_needed_of(&self, there: usize) -> bool {
        usize::try_from(self.most).is_ok_and(|most| most >= there)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkerCount {
    /// Number of workers, which may be zero or negative.
    ///
    /// Such numbers are refused later, in the order of `torchrun`.
    pub(super) workers: i64,
    /// Facts from which the number follows; empty for a plain number.
    pub(super) reason: String,
}

impl CountArgs {
    /// Parses `--nnodes`: `N` or `MIN:MAX`.
    pub(super) fn nodes(&self) -> Result<Nodes, Refusal> {
        let sentence = format!(
            "--nnodes is '{}', but must be N or MIN:MAX, with positive numbers and MIN at most \
             MAX, such as 2 or 1:4",
            self.nnodes
        );
        Ok(self.range().map_err(|raised| raised.plainly(sentence))?)
    }

    fn range(&self) -> Result<Nodes, Raised> {
        let text = &self.nnodes;
        let parts: Vec<&str> = text.split(':').collect();
        let (least, most) = match parts[..] {
            [both] => {
                let both = int_or_raise(both)?;
                (both, both)
            }
            [least, most] => (int_or_raise(least)?, int_or_raise(most)?),
            _ => {
                let text = format!("nnodes={text} is not in \"MIN:MAX\" format");
                return Err(Raised::new("RuntimeError", text));
            }
        };
        if !(0 < least && least <= most) {
            let text = format!(
                "min_nodes must be > 0 and <= max_nodes, got min_nodes={least}, max_nodes={most}"
            );
            return Err(Raised::new("AssertionError", text));
        }
        Ok(Nodes {
            least: u32::try_from(least).unwrap_or(u32::MAX),
            most: u32::try_from(most).unwrap_or(u32::MAX),
            text: text.clone(),
        })
    }

    /// Resolves `--nproc-per-node`.
    ///
    /// Several workers get `OMP_NUM_THREADS=1` by default.
    pub(super) fn workers(&self, context: &mut Context<'_>) -> Result<WorkerCount, Raised> {
        let count = self.count(context)?;
        count.limit_threads(context);
        Ok(count)
    }

    /// Returns the number of workers; `cpu` applies the limit of the control group.
    ///
    /// `torchrun` ignores this limit on processor time. In a container that may use the time of two
    /// processors, it starts a worker for each processor in the mask.
    fn count(&self, context: &mut Context<'_>) -> Result<WorkerCount, Raised> {
        if let Some(workers) = parse_int(&self.nproc_per_node) {
            let reason = String::new();
            return Ok(WorkerCount { workers, reason });
        }
        let accelerators = context.machine.accelerators();
        let counted = |vendor: Vendor, visible: usize, all: usize| {
            let name = vendor.name();
            let reason = if visible == all {
                count(all, &format!("{name} device"))
            } else {
                let are = if visible == 1 { "is" } else { "are" };
                format!("{visible} of {all} {name} devices {are} visible")
            };
            let workers = i64::try_from(visible).unwrap_or(i64::MAX);
            (visible > 0).then_some(WorkerCount { workers, reason })
        };
        let (vendor, all) = accelerators.gpus();
        let visible = accelerators.visible_gpus(&context.environment.visible_lists());
        let gpus = counted(vendor, visible.len(), all.len());
        let all = accelerators.intel.len();
        let xpus = counted(Vendor::Intel, all, all);
        match &*self.nproc_per_node {
            "cpu" => Ok(processors(context)),
            "gpu" => gpus.ok_or_else(|| {
                let raised = Raised::value_error("Cuda is not available.");
                raised.plainly(
                    "--nproc-per-node is 'gpu', but no NVIDIA or AMD device is visible; specify a \
                     number, cpu or auto",
                )
            }),
            "xpu" => xpus.ok_or_else(|| {
                let raised = Raised::value_error("Xpu is not available.");
                raised.plainly(
                    "--nproc-per-node is 'xpu', but no Intel device is visible; specify a number, \
                     cpu or auto",
                )
            }),
            "auto" => Ok(gpus.or(xpus).unwrap_or_else(|| {
                let mut count = processors(context);
                count.reason = format!("no accelerator, {}", count.reason);
                count
            })),
            text => {
                let raised =
                    Raised::value_error(format!("Unsupported nproc_per_node value: {text}"));
                let meant = did_you_mean(text, ["cpu", "gpu", "xpu", "auto"]);
                Err(raised.plainly(format!(
                    "--nproc-per-node is '{text}', but must be a positive number, cpu, gpu, xpu or \
                     auto{meant}"
                )))
            }
        }
    }
}

/// Returns the number of processors that the mask and the control group allow.
fn processors(context: &mut Context<'_>) -> WorkerCount {
    let mask = context.machine.affinity();
    let all = u32::try_from(mask.len()).unwrap_or(u32::MAX);
    let allowed = format!("{} in the affinity mask ({mask})", count(all, "processor"));
    let limit = context.machine.cpu_limit();
    let Some(limit) = limit.filter(|limit| limit.quota.processors() < all) else {
        return WorkerCount {
            workers: i64::from(all),
            reason: allowed,
        };
    };
    let CpuLimit { quota, file } = &limit;
    let workers = quota.processors();
    let reason = format!(
        "{allowed}, but CPU time for only {workers} of them: {file} allows {} of {} µs",
        quota.quota, quota.period
    );
    context.warn(format!(
        "the number of workers is {workers} instead of {all}: {reason} (torchrun counts only the \
         mask; --nproc-per-node {all} starts as many workers as torchrun)"
    ));
    WorkerCount {
        workers: i64::from(workers),
        reason,
    }
}

impl WorkerCount {
    /// Returns the number of workers, if it is valid.
    pub(super) fn local_world_size(&self) -> Result<u32, Raised> {
        let workers = self.workers;
        let size = u32::try_from(workers).ok().filter(|size| *size > 0);
        size.ok_or_else(|| {
            let text = format!("nproc_per_node must be > 0, got {workers}");
            Raised::new("AssertionError", text).plainly(format!(
                "--nproc-per-node is {workers}, but must be 1 or more"
            ))
        })
    }

    fn limit_threads(&self, context: &mut Context<'_>) {
        let environment = &mut context.workers;
        if self.workers <= 1 || environment.contains_key(OsStr::new(OMP_NUM_THREADS)) {
            return;
        }
        environment.insert(OMP_NUM_THREADS.into(), "1".into());
        let line = "*".repeat(41);
        context.notes.push(Note::Either {
            torchrun: format!(
                "\n{line}\nSetting OMP_NUM_THREADS environment variable for each process to be 1 in \
                 default, so that the workers of this node do not overload it; set it yourself for the \
                 best performance of your application.\n{line}"
            ),
            plain: "OMP_NUM_THREADS is not set: each worker uses 1 thread".to_owned(),
        });
    }
}

pub(super) fn explain(
    draft: &mut Draft,
    nodes: &Nodes,
    workers: u32,
    count: &WorkerCount,
    machine: &dyn Machine,
) {
    draft.section("Nodes and workers");
    let nodes = if nodes.least == nodes.most {
        nodes.most.to_string()
    } else {
        format!("{} to {}", nodes.least, nodes.most)
    };
    draft.setting("nodes", "nnodes", nodes, "");
    draft.flag("spare nodes", "spares");
    let (name, workers) = ("workers on this node", workers.to_string());
    draft.setting(name, "nproc_per_node", workers, &count.reason);
    draft.flag("role", "role");
    let models = machine.names(Path::new(NVIDIA)).into_iter().map(|name| {
        let text = machine.beginning(&Path::new(NVIDIA).join(name).join("information"));
        model_line(&text.unwrap_or_default())
    });
    let models = grouped(models);
    if !models.is_empty() {
        let version = machine.beginning(Path::new(NVIDIA_VERSION));
        let driver = driver_line(&version.unwrap_or_default());
        let from = "rdzv check shows the peer access between them";
        draft.line(
            "GPUs",
            format!("{models}, driver {driver}"),
            Provenance::detected(from),
        );
    }
}

/// Folder with the NVIDIA devices, and file with the version of their driver.
const NVIDIA: &str = "/proc/driver/nvidia/gpus";
const NVIDIA_VERSION: &str = "/proc/driver/nvidia/version";

/// Returns the name in the line `Model: …`.
fn model_line(information: &[u8]) -> String {
    let text = String::from_utf8_lossy(information);
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let model = lines.find(|(name, _)| name.trim() == "Model");
    model.map_or_else(
        || "unknown model".to_owned(),
        |(_, model)| model.trim().to_owned(),
    )
}

/// Returns the version in the line `NVRM version: …`.
fn driver_line(version: &[u8]) -> String {
    let text = String::from_utf8_lossy(version);
    let is_number =
        |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    let found = text.lines().next().unwrap_or_default();
    let found = found.split_whitespace().find(is_number);
    found.unwrap_or("unknown").to_owned()
}

/// Returns each name with its number, e.g. `8 x NVIDIA H100`.
pub(crate) fn grouped(names: impl Iterator<Item = String>) -> String {
    let mut counts: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let each = counts
        .iter()
        .map(|(name, count)| format!("{count} x {name}"));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_and_their_driver_are_named_from_the_files_of_the_driver() {
        let information = b"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 120\n";
        let models = [information, information].map(|text| model_line(text));
        assert_eq!(grouped(models.into_iter()), "2 x NVIDIA H100 80GB HBM3");
        let version = b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb\nGCC\n";
        assert_eq!(driver_line(version), "570.124.06");
        assert_eq!(driver_line(b""), "unknown");
    }
}
