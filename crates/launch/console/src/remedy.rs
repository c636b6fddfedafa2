//! Advice for known causes of failures.

use rdzv_agent_proto::group::{Exit, Failure};

const MORE_MEMORY: &str = "use a smaller batch, fewer workers (--nproc-per-node) or fewer data loader \
         processes, or raise the memory limit of the container or job";

const MORE_ROOM: &str = "free space on that file system; --log-dir and TMPDIR put output and temporary \
         files elsewhere";

/// Words in the text of a failure, in lower case, with advice.
/// The first matching row counts.
const ADVICE: &[(&[&str], &str)] = &[
    (
        &[
            "cuda out of memory",
            "hip out of memory",
            "outofmemoryerror",
            "cudnn_status_alloc_failed",
        ],
        "use a smaller batch or gradient checkpointing; \
         PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reduces fragmentation, and \
         nvidia-smi lists other users of the device",
    ),
    // This row follows the row for the device, because torch.OutOfMemoryError is the device's.
    (
        &["memoryerror", "cannot allocate memory", "bad_alloc"],
        MORE_MEMORY,
    ),
    (
        &["eaddrinuse", "address already in use"],
        "end the process that listens at that port (`ss -ltnp` names it), or choose \
         another port (--master-port, --rdzv-endpoint; port 0 selects a free one)",
    ),
    (
        &[
            "watchdog caught collective operation timeout",
            "collective operation timeout",
        ],
        "find the rank that did not reach the collective: --hang-timeout 300 names it and \
         its location, and TORCH_NCCL_TRACE_BUFFER_SIZE=2000 records the collectives",
    ),
    (
        &[
            "nccl error",
            "ncclsystemerror",
            "ncclunhandled",
            "ncclremoteerror",
            "ncclinternalerror",
        ],
        "set NCCL_DEBUG=INFO to log the peer and the interface; NCCL_SOCKET_IFNAME selects \
         the interface",
    ),
    (
        &["/dev/shm", "unable to open shared memory", "bus error"],
        "increase the shared memory (docker: --shm-size or --ipc=host), or use fewer data \
         loader workers",
    ),
    (
        &["too many open files"],
        "raise the limit of open files (`ulimit -n`), or use fewer data loader workers",
    ),
    (
        &["invalid device ordinal"],
        "start at most one worker per device: --nproc-per-node gpu starts one for each",
    ),
    (
        &[
            "no nvidia driver",
            "cuda driver version is insufficient",
            "no cuda gpus are available",
        ],
        "use a host or container with a driver and devices (`nvidia-smi` must work in it), \
         or the gloo backend on CPUs",
    ),
    (
        &["device-side assert"],
        "set CUDA_LAUNCH_BLOCKING=1, so that the traceback names the operation",
    ),
    (&["no space left on device"], MORE_ROOM),
    (
        &["can't open file", "no such file or directory"],
        "check the path: relative paths start at the directory in which rdzv was started",
    ),
    (
        &["permission denied", "not executable"],
        "check the permissions of that file; without --no-python, a script need not be \
         executable",
    ),
    (
        &[
            "connection refused",
            "name or service not known",
            "temporary failure in name resolution",
        ],
        "check the host name and port, whether that process is running, and firewalls \
         between the hosts",
    ),
    (
        &["exec format error"],
        "add a first line such as #!/bin/sh to the script, or use a program for this \
         processor",
    ),
];

/// Returns the advice for a failure, if there is any.
pub fn of(failure: &Failure) -> Option<String> {
    let text = failure.cause.to_string();
    if let Some(module) = missing_module(&text) {
        return Some(format!(
            "install '{module}' into the Python of the workers; another Python is chosen by an active virtual \
             environment or PYTHON_EXEC (`rdzv run --explain` shows which)"
        ));
    }
    let mut last_lines = failure.evidence.stderr_tail.iter().rev().take(20);
    // The text of an error is more precise than its kind, and the cause more than the lines before
    // it.
    of_text(&text)
        .or_else(|| by_kind(failure))
        .or_else(|| last_lines.find_map(|line| of_text(line)))
        .map(str::to_owned)
}

/// Returns the advice for the text of an error outside the workers.
/// An example is an error of the rendezvous.
pub fn of_text(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase();
    let row = ADVICE
        .iter()
        .find(|(words, _)| words.iter().any(|word| text.contains(word)))?;
    Some(row.1)
}

fn by_kind(failure: &Failure) -> Option<&'static str> {
    Some(match failure.cause.kind() {
        "out_of_memory" => MORE_MEMORY,
        "disk_full" => MORE_ROOM,
        "signal" => match failure.evidence.exit.map(Exit::as_number) {
            Some(-9) => {
                "check `dmesg` and the scheduler's log: the kernel (out of memory), a scheduler or \
         a user sent SIGKILL"
            }
            Some(-11 | -7 | -6 | -4 | -8) => {
                "set PYTHONFAULTHANDLER=1 to print the Python stack of a crash; `ulimit -c \
         unlimited` keeps a core file"
            }
            _ => return None,
        },
        "exit_code" => {
            "use -r 3 --log-dir DIR to keep all output; its last lines, if any, are above \
         (os._exit discards them)"
        }
        "hang" | "heartbeat" | "watchdog" => {
            "use --report FILE to record the stack of every rank; py-spy in the environment \
         adds Python's frames"
        }
        "node_lost" => {
            "check the log of that node and its scheduler; --nnodes MIN:MAX lets the other \
         nodes continue without it"
        }
        "uninterruptible" => {
            "check the file system or driver that it waits for: only its return, or a reboot, \
         ends such a process"
        }
        _ => return None,
    })
}

/// Returns the name of the module that Python does not find.
fn missing_module(text: &str) -> Option<&str> {
    let (_, module) = text.split_once("No module named ")?;
    let module = module.trim_start_matches('\'');
    let end = module.find(['\'', ';', ' ']).unwrap_or(module.len());
    let module = module[..end].trim_end_matches(['…', '.']);
    (!module.is_empty()).then_some(module)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::tests::failure;
    use rdzv_agent_proto::group::Cause;

    #[test]
    fn known_causes_have_advice_and_others_have_none() {
        let exception = Cause::exception;
        for (cause, number, part) in [
            (
                exception("ModuleNotFoundError: No module named 'numpy.core'"),
                1,
                "install 'numpy.core'",
            ),
            (
                exception(
                    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network \
                     address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
                ),
                1,
                "--master-port",
            ),
            (
                exception("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
                1,
                "expandable_segments",
            ),
            (
                exception("MemoryError: Unable to allocate 8 GiB"),
                1,
                "data loader",
            ),
            (
                exception(
                    "terminate called after throwing an instance of 'c10::DistBackendError': [PG ID 0] Watchdog \
                           caught collective operation timeout: WorkNCCL",
                ),
                -6,
                "--hang-timeout",
            ),
            (
                Cause::OutOfMemory {
                    evidence: "memory.events: oom_kill".to_owned(),
                },
                -9,
                "memory limit",
            ),
            (Cause::Signal { signal: 11 }, -11, "PYTHONFAULTHANDLER"),
            (
                Cause::ExitCode {
                    code: 3,
                    last_line: None,
                },
                3,
                "--log-dir",
            ),
            (
                Cause::DiskFull {
                    text: "OSError: [Errno 28]".to_owned(),
                },
                1,
                "space on",
            ),
            (
                Cause::NodeLost {
                    node: "b is lost".to_owned(),
                },
                1,
                "--nnodes MIN:MAX",
            ),
        ] {
            let failure = failure(0, "a", number, &cause);
            let advice = of(&failure).unwrap_or_default();
            assert!(advice.contains(part), "{cause}: {advice}");
        }
        assert_eq!(
            of(&failure(0, "a", 1, &exception("ValueError: boom"))),
            None
        );
    }

    #[test]
    fn the_last_lines_of_stderr_help_where_the_cause_does_not() {
        let mut failure = failure(
            0,
            "a",
            1,
            &Cause::exception("RuntimeError: DataLoader worker failed"),
        );
        failure.evidence.stderr_tail =
            vec!["ERROR: Unexpected bus error encountered in worker".to_owned()];
        assert!(of(&failure).unwrap_or_default().contains("--shm-size"));
    }
}
