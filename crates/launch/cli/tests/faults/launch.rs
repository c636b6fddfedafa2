//! One node, from its start to its report.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rdzv_testing::{Process, pids};
use rustix::process::Signal;
use serde_json::Value;

use crate::table::scripts;

/// Time limit for a report on a busy machine; a longer run is a failure.
const DEADLINE: Duration = Duration::from_secs(40);

/// Parameters of a launch.
pub(crate) struct Launch<'a> {
    /// Directory of the run.
    pub(crate) directory: &'a Path,
    /// Index of the node in the run.
    pub(crate) index: usize,
    pub(crate) port: u16,
    /// Program with arguments that starts the launcher.
    ///
    /// The last argument is a shell script that ends with `exec "$@"`.
    pub(crate) within: Vec<String>,
    /// Arguments in front of the row's arguments.
    pub(crate) rendezvous: Vec<String>,
    pub(crate) launcher: &'a [String],
    pub(crate) worker: &'a [String],
}

/// Running node.
pub(crate) struct Node {
    process: Process,
    report: PathBuf,
    stderr: PathBuf,
}

/// Node that has exited.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// `true` if the test killed the node because it did not exit.
    pub(crate) hung: bool,
    pub(crate) report: Option<Value>,
    pub(crate) stderr: String,
}

impl Launch<'_> {
    /// Starts the launch.
    pub(crate) fn start(self) -> Node {
        let filled = |word: &String| {
            word.replace("{dir}", self.directory.to_str().unwrap())
                .replace("{scripts}", scripts().to_str().unwrap())
                .replace("{port}", &self.port.to_string())
        };
        let file = |name: &str| self.directory.join(format!("{name}{}", self.index));
        let (report, stderr) = (file("report"), file("stderr"));
        let mut words = self.within.into_iter();
        let rdzv = env!("CARGO_BIN_EXE_rdzv");
        let mut command = match words.next() {
            Some(program) => {
                let mut command = Command::new(program);
                command.args(words).args(["sh", rdzv]);
                command
            }
            None => Command::new(rdzv),
        };
        command
            .arg("run")
            .arg("--report")
            .arg(&report)
            .args(self.rendezvous)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("PYTHON_EXEC", python())
            .env("TMPDIR", self.directory)
            .env("PET_LOCAL_ADDR", "127.0.0.1")
            .env("OMP_NUM_THREADS", "1")
            .current_dir(self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&stderr).unwrap());
        for word in self.launcher.iter().map(filled) {
            match word.split_once('=') {
                Some((name, value)) if is_variable(name) => command.env(name, value),
                _ => command.arg(word),
            };
        }
        match self.worker[0].as_str() {
            "fixture" => command.arg("--no-python").arg(fixture_worker()),
            script if scripts().join(script).exists() => command.arg(scripts().join(script)),
            program => command.arg(filled(&program.to_owned())),
        };
        command.args(self.worker[1..].iter().map(filled));
        Node {
            process: Process::start(&mut command),
            report,
            stderr,
        }
    }
}

fn is_variable(name: &str) -> bool {
    name.chars()
        .all(|letter| letter.is_ascii_uppercase() || letter == '_')
}

impl Node {
    /// Waits for the exit of the node.
    pub(crate) fn wait(mut self) -> Ended {
        let ended = self.process.wait_within(DEADLINE);
        let hung = ended.is_none();
        let status = ended.unwrap_or_else(|| {
            // When the keeper exits, all other processes exit.
            self.process.signal(Signal::KILL);
            self.process.wait()
        });
        let report = fs::read(&self.report).ok();
        Ended {
            status,
            hung,
            report: report.and_then(|text| serde_json::from_slice(&text).ok()),
            stderr: String::from_utf8_lossy(&fs::read(&self.stderr).unwrap()).into_owned(),
        }
    }

    /// Kills all processes of the node, as a loss of power does.
    pub(crate) fn lose(mut self) {
        // The agent is killed first, because it would leave in order after the loss of its keeper.
        if let Some(agent) = pids::agent(self.process.pid()) {
            pids::kill(agent, Signal::KILL);
        }
        self.process.kill();
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (hung: {})", self.status, self.hung)?;
        for line in self.stderr.lines() {
            writeln!(f, "  | {}", line.chars().take(300).collect::<String>())?;
        }
        let report = self.report.as_ref().map(|report| format!("{report:#}"));
        writeln!(f, "{}", report.as_deref().unwrap_or("no report"))
    }
}

/// Returns the path of the interpreter itself, not of a wrapper script.
fn python() -> &'static str {
    static PYTHON: OnceLock<String> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let asked = Command::new("python3")
            .args(["-c", "import sys; print(sys.executable)"])
            .output();
        let asked = asked.expect("the faults need python3");
        String::from_utf8(asked.stdout).unwrap().trim().to_owned()
    })
}

fn fixture_worker() -> PathBuf {
    rdzv_testing::program("fixture_worker")
}
