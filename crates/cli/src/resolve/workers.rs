//! How many workers this node starts, and which devices they see.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use rdzv_core::env::{CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, OMP_NUM_THREADS};

use super::{Environment, Machine, Note};
use crate::args::RunArgs;
use crate::args::number::parse_int;
use crate::exit::{Raised, Refusal};

/// Reads `--nproc-per-node`. Zero and negative numbers pass: they are refused later, in the
/// reference's order.
pub(super) fn local_world_size(
    text: &str,
    environment: &Environment,
    machine: &dyn Machine,
) -> Result<i64, Raised> {
    if let Some(number) = parse_int(text) {
        return Ok(number);
    }
    let some = |count: u32| (count > 0).then_some(i64::from(count));
    let gpus = || some(visible_gpus(environment, machine));
    let xpus = || some(machine.xpu_devices());
    let processors = || i64::from(machine.usable_processors());
    match text {
        "cpu" => Ok(processors()),
        "gpu" => gpus().ok_or_else(|| Raised::value_error("Cuda is not available.")),
        "xpu" => xpus().ok_or_else(|| Raised::value_error("Xpu is not available.")),
        "auto" => Ok(gpus().or_else(xpus).unwrap_or_else(processors)),
        _ => Err(Raised::value_error(format!(
            "Unsupported nproc_per_node value: {text}"
        ))),
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

/// Binding needs an accelerator; where there is one, it is still to come.
pub(super) fn check_numa_binding(
    arguments: &RunArgs,
    environment: &Environment,
    machine: &dyn Machine,
) -> Result<(), Refusal> {
    match &arguments.numa_binding {
        None => Ok(()),
        Some(_) if visible_gpus(environment, machine) == 0 && machine.xpu_devices() == 0 => {
            Err(Raised::new("RuntimeError", "No accelerator available for NUMA binding").into())
        }
        Some(mode) => Err(Refusal::Unsupported(format!(
            "--numa-binding {mode} is not supported yet; leave it out, and bind workers with \
             `--no-python numactl …` if you need it"
        ))),
    }
}

/// NVIDIA or AMD devices, restricted as the driver's library restricts them: the list counts up to
/// its first entry that is no device.
fn visible_gpus(environment: &Environment, machine: &dyn Machine) -> u32 {
    let all = machine.gpu_devices();
    let list = environment
        .filled(HIP_VISIBLE_DEVICES)
        .or_else(|| environment.text(CUDA_VISIBLE_DEVICES));
    let Some(list) = list else { return all };
    let exists = |entry: &&str| match parse_int(entry) {
        Some(index) => (0..i64::from(all)).contains(&index),
        None => entry.starts_with("GPU-") || entry.starts_with("MIG-"),
    };
    let count = list.split(',').map(str::trim).take_while(exists).count();
    u32::try_from(count).unwrap_or(u32::MAX).min(all)
}
