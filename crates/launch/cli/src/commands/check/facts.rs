//! Facts about one node for a check, and the functions that collect them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read as _;
use std::net::ToSocketAddrs as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rdzv_agent::launcher::python::interpreter;
use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};

use super::gpus::{described, gpu_problems};
use crate::launch::{Environment, Machine, ThisHost};

/// Limit for a program that reports about the node.
///
/// The driver of a broken device may never answer.
const PROGRAM_WITHIN: Duration = Duration::from_secs(20);

/// Python code that prints the versions of Python and PyTorch.
///
/// It does not import PyTorch. Without PyTorch, the second line is empty.
const VERSIONS: &str = "\
import importlib.metadata as m, sys
print('.'.join(map(str, sys.version_info[:3])))
try: print(m.version('torch'))
except m.PackageNotFoundError: print('')";

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(super) struct Facts {
    pub(super) node: String,
    pub(super) rdzv: String,
    /// Path and versions of the workers' Python; the reason if there is none.
    pub(super) python: Result<Python, String>,
    /// Free bytes by directory; the reason if the directory cannot be used.
    pub(super) disks: BTreeMap<PathBuf, Result<u64, String>>,
    pub(super) gpus: usize,
    pub(super) gpu_problems: Vec<String>,
    /// Names, driver and peer access of the GPUs; empty if unknown.
    pub(super) gpu_names: String,
    /// Addresses of the node by its own name; the reason if there are none.
    pub(super) addresses: Result<Vec<String>, String>,
    /// Port to which the other nodes try to connect.
    pub(super) port: u16,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq, Default)]
pub(super) struct Python {
    pub(super) path: String,
    pub(super) version: String,
    /// Empty without PyTorch.
    pub(super) torch: String,
}

/// Collects the facts about this node.
///
/// `directories` are the directories that need free space.
pub(super) fn gather(node: String, environment: &Environment, directories: &[PathBuf]) -> Facts {
    let accelerators = ThisHost.accelerators();
    let (vendor, gpus) = accelerators.gpus();
    let gpus = gpus.len();
    let gpu_problems = match vendor.name() {
        "NVIDIA" if gpus > 0 => nvidia(gpus),
        _ => Vec::new(),
    };
    let gpu_names = match vendor.name() {
        "NVIDIA" if gpus > 0 => nvidia_names(),
        _ => String::new(),
    };
    let disks = directories.iter().map(|path| (path.clone(), free(path)));
    let addresses = (node.as_str(), 0).to_socket_addrs();
    Facts {
        rdzv: env!("CARGO_PKG_VERSION").to_owned(),
        python: python(environment),
        disks: disks.collect(),
        gpus,
        gpu_problems,
        gpu_names,
        addresses: addresses
            .map(|all| all.map(|address| address.ip().to_string()).collect())
            .map_err(|error| error.to_string()),
        port: 0,
        node,
    }
}

fn free(path: &Path) -> Result<u64, String> {
    if !ThisHost.takes_files(path) {
        return Err("cannot create a file".to_owned());
    }
    let found = statvfs(path).map_err(|error| error.to_string())?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

fn python(environment: &Environment) -> Result<Python, String> {
    let found = interpreter(
        &environment.0,
        None,
        || None,
        |path| ThisHost.is_file(path),
        |path| ThisHost.is_program(path),
    );
    let (path, _) = found.ok_or("VIRTUAL_ENV and PATH contain no Python")?;
    let printed = run(Command::new(&path).args(["-c", VERSIONS]))?;
    let mut lines = printed.lines().map(str::to_owned);
    Ok(Python {
        path: path.to_string_lossy().into_owned(),
        version: lines.next().unwrap_or_default(),
        torch: lines.next().unwrap_or_default(),
    })
}

fn nvidia(gpus: usize) -> Vec<String> {
    let mut query = Command::new("nvidia-smi");
    query.args([
        "--query-gpu=index,ecc.errors.uncorrected.volatile.total",
        "--format=csv,noheader",
    ]);
    match run(&mut query) {
        Ok(printed) => gpu_problems(&printed, gpus),
        // A container may have the devices but not the tool.
        Err(error) if error.starts_with(NOT_STARTED) => Vec::new(),
        Err(error) => vec![format!("nvidia-smi: {error}")],
    }
}

fn nvidia_names() -> String {
    let mut query = Command::new("nvidia-smi");
    query.args(["--query-gpu=name,driver_version", "--format=csv,noheader"]);
    let mut peers = Command::new("nvidia-smi");
    peers.args(["topo", "-p2p", "r"]);
    // A missing tool is not a problem, and `nvidia` reports a tool that fails.
    described(
        &run(&mut query).unwrap_or_default(),
        &run(&mut peers).unwrap_or_default(),
    )
}

const NOT_STARTED: &str = "cannot start it";

/// Returns the stdout of a program, which must exit with 0 in time.
fn run(command: &mut Command) -> Result<String, String> {
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command
        .spawn()
        .map_err(|error| format!("{NOT_STARTED}: {error}"))?;
    let mut stdout = child.stdout.take().ok_or("cannot read its output")?;
    let (sender, read) = channel();
    let reader = thread::Builder::new().spawn(move || {
        let mut text = String::new();
        let _ = sender.send(stdout.read_to_string(&mut text).map(|_| text));
    });
    let text = read.recv_timeout(PROGRAM_WITHIN);
    if text.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    reader.map_err(|error| format!("cannot start a thread: {error}"))?;
    match text {
        Err(_) => {
            let limit = PROGRAM_WITHIN.as_secs();
            Err(format!("it did not exit within {limit} s"))
        }
        Ok(_) if !status.success() => Err(format!("it failed ({status})")),
        Ok(text) => text.map_err(|error| error.to_string()),
    }
}

/// Returns the directory of temporary files, then the directories of `named`.
pub(super) fn directories(environment: &Environment, named: &[PathBuf]) -> Vec<PathBuf> {
    let temporary = environment.0.get(OsStr::new("TMPDIR"));
    let temporary = temporary.filter(|path| !path.is_empty());
    let temporary = temporary.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    let mut all = vec![temporary];
    all.extend(named.iter().cloned());
    all
}
