//! Advice for known causes of failures.

use rdzv_agent_proto::group::{Exit, Failure};
use rdzv_core::env::{PYTHON_EXEC, VIRTUAL_ENV};

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
         another port (--master-port, --rdzv-endpoint; on one node, port 0 selects a free one)",
    ),
    (
        &["cannot assign requested address"],
        "connect to an address that an interface of this host can reach; if no local port is \
         free, widen net.ipv4.ip_local_port_range, or end processes with many connections",
    ),
    (
        &[
            "watchdog caught collective operation timeout",
            "collective operation timeout",
        ],
        "use --hang-timeout 300 to name the rank that did not reach the collective; with \
         --worker-server and PyTorch's worker_main, rdzv also compares the collectives of all \
         ranks",
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
    (
        &["getpwuid"],
        "set USER=NAME in the environment, because this user id has no entry in /etc/passwd; \
         TORCHINDUCTOR_CACHE_DIR=DIR selects the cache of the compiler",
    ),
    (&["no space left on device"], MORE_ROOM),
    (
        &["read-only file system"],
        "use a writable directory: --log-dir for output, TMPDIR for temporary files",
    ),
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

/// Facts about a launch on which advice depends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Flags and variables that are set already; general advice omits them.
    pub active: Vec<String>,
    /// Interpreter of the workers, and its origin.
    pub interpreter: Option<(String, String)>,
    /// Modules in the folder in which rdzv was started.
    pub modules: Vec<String>,
    /// Process that uses the port in the text of the failure.
    pub port_user: Option<String>,
}

/// Returns the advice for a failure, if there is any.
pub fn of(failure: &Failure, surroundings: &Surroundings) -> Option<String> {
    let text = failure.cause.to_string();
    if let Some(module) = missing_module(&text) {
        return Some(for_module(module, surroundings));
    }
    if let Some(user) = &surroundings.port_user {
        return Some(format!(
            "end that process or choose another port (--master-port, --rdzv-endpoint): {user}"
        ));
    }
    let advice = of_parts(failure, &text)?;
    let is_active = |clause: &&str| {
        let mut words = clause.split([' ', '=', ',', '(', ')']);
        words.any(|word| surroundings.active.iter().any(|active| active == word))
    };
    let clauses = advice.split("; ").filter(|clause| !is_active(clause));
    let clauses: Vec<&str> = clauses.collect();
    (!clauses.is_empty()).then(|| clauses.join("; "))
}

/// Returns the advice for a module that Python does not find.
fn for_module(module: &str, surroundings: &Surroundings) -> String {
    let package = module.split('.').next().unwrap_or(module);
    let is_set = |name: &str| surroundings.active.iter().any(|active| active == name);
    if surroundings.modules.iter().any(|here| here == package) {
        let path = if is_set("PYTHONPATH") {
            "add . to PYTHONPATH"
        } else {
            "set PYTHONPATH=."
        };
        return format!(
            "{path}, or use -m with a module name instead of a script: '{package}' is in the \
             current folder, which Python does not search for a script in another folder"
        );
    }
    let python = match &surroundings.interpreter {
        Some((python, origin)) => format!("{python} ({origin})"),
        None => "the Python of the workers".to_owned(),
    };
    let other = if is_set(PYTHON_EXEC) {
        ", or change PYTHON_EXEC"
    } else if is_set(VIRTUAL_ENV) {
        "; PYTHON_EXEC selects another Python"
    } else {
        "; an active virtual environment or PYTHON_EXEC selects another Python"
    };
    format!("install '{module}' into {python}{other}")
}

fn of_parts(failure: &Failure, text: &str) -> Option<&'static str> {
    let mut last_lines = failure.evidence.stderr_tail.iter().rev().take(20);
    // The text of an error is more precise than its kind, and the cause more than the lines before
    // it.
    of_text(text)
        .or_else(|| by_kind(failure))
        .or_else(|| last_lines.find_map(|line| of_text(line)))
}

/// Returns the advice for the text of an error, if there is any.
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
            "use -r 3 --log-dir DIR to keep all output; the last lines of stderr, if any, are \
             above"
        }
        "hang" | "heartbeat" | "watchdog" => {
            "use --events-file FILE to record the stack of every rank; install py-spy to add \
             Python's frames"
        }
        "node_lost" => {
            "check the log of that node and its scheduler; with a dynamic rendezvous, --nnodes \
         MIN:MAX lets the other nodes continue without it"
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
                exception("OSError: [Errno 99] Cannot assign requested address"),
                1,
                "ip_local_port_range",
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
            let advice = of(&failure, &Surroundings::default()).unwrap_or_default();
            assert!(advice.contains(part), "{cause}: {advice}");
        }
        assert_eq!(
            of(
                &failure(0, "a", 1, &exception("ValueError: boom")),
                &Surroundings::default()
            ),
            None
        );
    }

    #[test]
    fn advice_depends_on_the_surroundings() {
        let missing = failure(
            0,
            "a",
            1,
            &Cause::exception("ModuleNotFoundError: No module named 'pkg.sub'"),
        );
        let mut surroundings = Surroundings {
            interpreter: Some((
                "/usr/bin/python3".into(),
                "the first python3 in PATH".into(),
            )),
            ..Surroundings::default()
        };
        let advice = of(&missing, &surroundings).unwrap();
        let start = "install 'pkg.sub' into /usr/bin/python3 (the first python3 in PATH); ";
        assert!(advice.starts_with(start), "{advice}");
        for (variable, end) in [
            ("VIRTUAL_ENV", "; PYTHON_EXEC selects another Python"),
            ("PYTHON_EXEC", " PATH), or change PYTHON_EXEC"),
        ] {
            surroundings.active.push(variable.into());
            let advice = of(&missing, &surroundings).unwrap();
            assert!(advice.ends_with(end), "{advice}");
            assert!(!advice.contains("virtual environment"), "{advice}");
        }
        surroundings.modules.push("pkg".into());
        let advice = of(&missing, &surroundings).unwrap();
        assert!(
            advice.starts_with("set PYTHONPATH=., or use -m "),
            "{advice}"
        );
        surroundings.active.push("PYTHONPATH".into());
        let advice = of(&missing, &surroundings).unwrap();
        assert!(advice.starts_with("add . to PYTHONPATH, or"), "{advice}");
        let code = Cause::ExitCode {
            code: 3,
            last_line: None,
        };
        let code = failure(0, "a", 3, &code);
        surroundings.active.push("-r".into());
        let advice = of(&code, &surroundings).unwrap();
        assert!(!advice.contains("-r 3"), "{advice}");
        let crash = failure(0, "a", -11, &Cause::Signal { signal: 11 });
        surroundings.active.push("PYTHONFAULTHANDLER".into());
        let advice = of(&crash, &surroundings).unwrap();
        assert_eq!(advice, "`ulimit -c unlimited` keeps a core file");
        let user = Cause::exception("KeyError: 'getpwuid(): uid not found: 1234'");
        let user = failure(0, "a", 1, &user);
        assert!(
            of(&user, &surroundings)
                .unwrap()
                .starts_with("set USER=NAME")
        );
        surroundings
            .active
            .extend(["USER", "TORCHINDUCTOR_CACHE_DIR"].map(str::to_owned));
        assert_eq!(of(&user, &surroundings), None);
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
        assert!(
            of(&failure, &Surroundings::default())
                .unwrap_or_default()
                .contains("--shm-size")
        );
    }
}
