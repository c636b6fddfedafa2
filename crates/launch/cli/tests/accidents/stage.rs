//! A launch on a terminal, with a second node where the accident needs one.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdzv_testing::{DEADLINE, Marker, Process, Terminal, free_port, pids};

use tempfile::Builder;

use crate::scenes::{BEGINNING, Other, Scene};

/// The size of the terminal.
const SIZE: (u16, u16) = (80, 24);

/// A launcher that waits for ever is given up after this, as a person would give it up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(45);

/// The launcher under test, and the folder whose programs come first in PATH.
pub(crate) struct Launcher {
    program: PathBuf,
    words: Vec<PathBuf>,
    programs: Option<PathBuf>,
    pub(crate) is_rdzv: bool,
}

impl Launcher {
    pub(crate) fn rdzv() -> Self {
        Self {
            program: env!("CARGO_BIN_EXE_rdzv").into(),
            words: vec!["run".into()],
            programs: None,
            is_rdzv: true,
        }
    }

    /// The same with the interpreter of an environment for its workers.
    pub(crate) fn rdzv_with(environment: &Path) -> Self {
        Self {
            programs: Some(environment.join("bin")),
            ..Self::rdzv()
        }
    }

    /// That of an environment with PyTorch. Its first line names another path of the interpreter.
    pub(crate) fn torchrun(environment: &Path) -> Self {
        Self {
            program: environment.join("bin/python"),
            words: vec![environment.join("bin/torchrun")],
            programs: Some(environment.join("bin")),
            is_rdzv: false,
        }
    }
}

/// The screen in the end.
pub(crate) struct Screen {
    pub(crate) rows: Vec<String>,
    /// None if it had not ended and was killed.
    pub(crate) code: Option<i32>,
    /// Number of lines since the start.
    pub(crate) lines: usize,
}

impl Screen {
    /// Whether the words are on the screen, also across the end of a row: torchrun's lines are wrapped by the terminal.
    pub(crate) fn has(&self, words: &str) -> bool {
        self.text().contains(words) || self.rows.concat().contains(words)
    }

    /// The rows as one line with single blanks: where a row ends does not matter.
    pub(crate) fn text(&self) -> String {
        let words = self.rows.iter().flat_map(|row| row.split_whitespace());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Lets the accident happen.
pub(crate) fn play(scene: &Scene, launcher: &Launcher, workers: u32) -> Screen {
    // A short path, because it is in the lines.
    let directory = Builder::new()
        .prefix("job-")
        .rand_bytes(4)
        .tempdir_in("/tmp");
    let directory = directory.unwrap();
    let place = directory.path().to_owned();
    let script = format!("{BEGINNING}{}", scene.script);
    fs::write(place.join("train.py"), script).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = (free_port(), taken.local_addr().unwrap().port());
    let flags = flags(scene, launcher, ports, workers);
    let (marker, other_marker) = (Marker::new(), Marker::new());
    let prepared = |mut command: Command, marker: &Marker| {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let first = launcher.programs.clone().into_iter();
        let path = std::env::join_paths(first.chain(std::env::split_paths(&inherited)));
        command
            .env_clear()
            .env("PATH", path.unwrap())
            .env("HOME", &place)
            .env("TMPDIR", &place)
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .env("OMP_NUM_THREADS", "1")
            .env("PET_LOCAL_ADDR", "127.0.0.1")
            .current_dir(&place);
        marker.mark(&mut command);
        command
    };
    let start_other = |other: &Other| {
        let mut command = prepared(Command::new(&launcher.program), &other_marker);
        command
            .args(&launcher.words)
            .args(&flags)
            .args(other.flags)
            .arg("train.py")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Process::start(&mut command)
    };
    let mut command = prepared(Terminal::command(&launcher.program), &marker);
    command.args(&launcher.words).args(&flags).arg("train.py");
    let mut terminal = Terminal::start(command, SIZE.0, SIZE.1);
    let began = Instant::now();
    let other = scene.other.as_ref().map(|other| {
        // The one on the terminal hosts what they meet at.
        let host = Duration::from_millis(if launcher.is_rdzv { 300 } else { 6_000 });
        pids::ends_within(terminal.pid(), host);
        start_other(other)
    });
    if scene.other.as_ref().is_some_and(|other| other.is_killed) {
        let last = place.join(format!("up{}", 2 * workers - 1));
        while !last.exists() {
            assert!(
                began.elapsed() < DEADLINE,
                "{}",
                terminal.screen().join("\n")
            );
            assert!(!pids::ends_within(terminal.pid(), Duration::from_millis(5)));
        }
        other_marker.kill_all();
    }
    let limit = if launcher.is_rdzv {
        DEADLINE
    } else {
        GIVEN_UP_AFTER
    };
    let code = match pids::ends_within(terminal.pid(), limit) {
        true => terminal.wait().code(),
        false => None,
    };
    let (rows, lines) = (terminal.screen(), terminal.lines().len());
    marker.kill_all();
    other_marker.kill_all();
    drop(other);
    let rows = rows
        .iter()
        .map(|row| row.replace(&*place.to_string_lossy(), "/tmp/job"));
    Screen {
        rows: rows.collect(),
        code,
        lines,
    }
}

fn flags(
    scene: &Scene,
    launcher: &Launcher,
    (free, taken): (u16, u16),
    workers: u32,
) -> Vec<String> {
    let own: &[&str] = if launcher.is_rdzv {
        scene.own_flags
    } else {
        &[]
    };
    let flags = scene.flags.iter().chain(own);
    let flags = flags.map(|flag| {
        flag.replace("{port}", &free.to_string())
            .replace("{taken}", &taken.to_string())
            // The imports of a second torchrun take some of that.
            .replace("{join}", if launcher.is_rdzv { "5" } else { "20" })
    });
    std::iter::once(format!("--nproc-per-node={workers}"))
        .chain(flags)
        .collect()
}
