//! How many workers this node starts, and which devices they see.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use rdzv_agent_proto::topology::{Binding, BindingMode, CpuLimit, Vendor, VisibleLists};
use rdzv_core::env::{CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, OMP_NUM_THREADS};

use super::{Environment, Machine, Note};
use crate::args::RunArgs;
use crate::args::number::parse_int;
use crate::exit::Raised;

/// How many workers, and why so many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Count {
    /// Zero and negative numbers are possible: they are refused later, in the reference's order.
    pub(super) workers: i64,
    /// What was counted; empty for a plain number.
    pub(super) reason: String,
}

/// Reads `--nproc-per-node`.
///
/// A limit of the control group on processor time lowers the number of processors, which the
/// reference does not look at: in a container with two processors' worth of a large machine it starts
/// a worker for each processor of that.
pub(super) fn local_world_size(
    text: &str,
    environment: &Environment,
    machine: &dyn Machine,
    notes: &mut Vec<Note>,
) -> Result<Count, Raised> {
    if let Some(workers) = parse_int(text) {
        return Ok(Count {
            workers,
            reason: String::new(),
        });
    }
    let accelerators = machine.accelerators();
    let lists = lists(environment);
    let counted = |vendor: Vendor, visible: usize, all: usize| {
        let name = vendor.name();
        let reason = if visible == all {
            format!("{all} {name} devices")
        } else {
            format!("{visible} of {all} {name} devices are visible")
        };
        let workers = i64::try_from(visible).unwrap_or(i64::MAX);
        (visible > 0).then_some(Count { workers, reason })
    };
    let gpus = || {
        let (vendor, all) = accelerators.gpus();
        counted(vendor, accelerators.visible_gpus(&lists).len(), all.len())
    };
    let xpus = || {
        let all = accelerators.intel.len();
        counted(Vendor::Intel, all, all)
    };
    match text {
        "cpu" => Ok(processors(machine, notes)),
        "gpu" => gpus().ok_or_else(|| Raised::value_error("Cuda is not available.")),
        "xpu" => xpus().ok_or_else(|| Raised::value_error("Xpu is not available.")),
        "auto" => Ok(gpus().or_else(xpus).unwrap_or_else(|| {
            let mut count = processors(machine, notes);
            count.reason = format!("no accelerator, {}", count.reason);
            count
        })),
        _ => Err(Raised::value_error(format!(
            "Unsupported nproc_per_node value: {text}"
        ))),
    }
}

/// The processors of the affinity mask, as far as there is time on them.
fn processors(machine: &dyn Machine, notes: &mut Vec<Note>) -> Count {
    let mask = machine.affinity();
    let count = u32::try_from(mask.len()).unwrap_or(u32::MAX);
    let allowed = format!("{count} processors in the affinity mask ({mask})");
    let Some(limit) = machine
        .cpu_limit()
        .filter(|limit| limit.quota.processors() < count)
    else {
        return Count {
            workers: i64::from(count),
            reason: allowed,
        };
    };
    let CpuLimit { quota, file } = &limit;
    let workers = quota.processors();
    let reason = format!(
        "{allowed}, and time on {workers} of them: {file} allows {} of {} µs",
        quota.quota, quota.period
    );
    notes.push(Note::Warning(format!(
        "the number of workers is {workers} and not {count}: {reason} (torchrun counts the mask \
         only; --nproc-per-node {count} starts as many as it would)"
    )));
    Count {
        workers: i64::from(workers),
        reason,
    }
}

/// Keeps several workers from each taking all processors.
pub(super) fn limit_threads(
    local_world_size: i64,
    environment: &mut BTreeMap<OsString, OsString>,
    notes: &mut Vec<Note>,
) {
    if local_world_size <= 1 || environment.contains_key(OsStr::new(OMP_NUM_THREADS)) {
        return;
    }
    environment.insert(OMP_NUM_THREADS.into(), "1".into());
    let line = "*".repeat(41);
    notes.push(Note::Warning(format!(
        "\n{line}\nSetting OMP_NUM_THREADS environment variable for each process to be 1 in \
         default, so that the workers of this node do not overload it; set it yourself for the \
         best performance of your application.\n{line}"
    )));
}

/// Refuses more workers than there are devices to hand out one by one.
pub(super) fn check_virtual_local_rank(
    local_world_size: u32,
    environment: &Environment,
) -> Result<(), Raised> {
    let hip = environment.filled(HIP_VISIBLE_DEVICES);
    let (variable, list) = match (hip, environment.text(CUDA_VISIBLE_DEVICES)) {
        (Some(list), _) => (HIP_VISIBLE_DEVICES, list),
        (None, Some(list)) => (CUDA_VISIBLE_DEVICES, list),
        (None, None) => return Ok(()),
    };
    let devices = list.split(',').count();
    if devices < local_world_size as usize {
        return Err(Raised::value_error(format!(
            "local_rank {devices} exceeds available GPUs in {variable}={list}"
        )));
    }
    Ok(())
}

/// The processors of each worker with `--numa-binding`; none without it.
pub(super) fn numa_binding(
    arguments: &RunArgs,
    environment: &Environment,
    machine: &dyn Machine,
    local_world_size: u32,
) -> Result<Vec<Binding>, Raised> {
    let Some(mode) = arguments
        .numa_binding
        .as_deref()
        .and_then(BindingMode::named)
    else {
        return Ok(Vec::new());
    };
    machine
        .bind(mode, &lists(environment), local_world_size)
        .map_err(|error| Raised::new("RuntimeError", error.to_string()))
}

fn lists(environment: &Environment) -> VisibleLists {
    VisibleLists {
        cuda: environment.text(CUDA_VISIBLE_DEVICES),
        hip: environment.text(HIP_VISIBLE_DEVICES),
    }
}
