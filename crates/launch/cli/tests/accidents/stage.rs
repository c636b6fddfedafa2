//! Launch on a terminal, with a second node if the accident needs one.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdzv_testing::{DEADLINE, Marker, Process, Terminal, free_port, pids};

use tempfile::Builder;

use crate::scenes::{BEGINNING, Other, Scene};

/// Size of the terminal.
const SIZE: (u16, u16) = (80, 24);

const RDZV: &str = env!("CARGO_BIN_EXE_rdzv");

/// Screen at the end of the launch.
pub(crate) struct Screen {
    pub(crate) rows: Vec<String>,
    /// Exit code; `None` if the launch did not end and was killed.
    pub(crate) code: Option<i32>,
}

impl Screen {
    /// Joins the rows to one line with single blanks, which ignores line ends.
    pub(crate) fn text(&self) -> String {
        let words = self.rows.iter().flat_map(|row| row.split_whitespace());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Runs the accident, and returns the final screen.
pub(crate) fn play(scene: &Scene, workers: u32) -> Screen {
    // A short path, because the lines contain it.
    let directory = Builder::new()
        .prefix("job-")
        .rand_bytes(4)
        .tempdir_in("/tmp");
    let directory = directory.unwrap();
    let folder = directory.path().to_owned();
    let script = format!("{BEGINNING}{}", scene.script);
    fs::write(folder.join("train.py"), script).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = (free_port(), taken.local_addr().unwrap().port());
    let flags = flags(scene, ports, workers);
    let (marker, other_marker) = (Marker::new(), Marker::new());
    let prepared = |mut command: Command, marker: &Marker| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", &folder)
            .env("TMPDIR", &folder)
            .env("TERM", "xterm-256color")
            .env("LC_ALL", "C.UTF-8")
            .env("OMP_NUM_THREADS", "1")
            .env("PET_LOCAL_ADDR", "127.0.0.1")
            .current_dir(&folder);
        marker.mark(&mut command);
        command
    };
    let start_other = |other: &Other| {
        let mut command = prepared(Command::new(RDZV), &other_marker);
        command
            .arg("run")
            .args(&flags)
            .args(other.flags)
            .arg("train.py")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Process::start(&mut command)
    };
    let mut command = prepared(Terminal::command(RDZV), &marker);
    command.arg("run").args(&flags).arg("train.py");
    let mut terminal = Terminal::start(command, SIZE.0, SIZE.1);
    let began = Instant::now();
    let other = scene.other.as_ref().map(|other| {
        // The node on the terminal hosts the rendezvous, so it starts first.
        pids::ends_within(terminal.pid(), Duration::from_millis(300));
        start_other(other)
    });
    if scene.other.as_ref().is_some_and(|other| other.is_killed) {
        let last = folder.join(format!("up{}", 2 * workers - 1));
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
    let code = if pids::ends_within(terminal.pid(), DEADLINE) {
        terminal.wait().code()
    } else {
        None
    };
    let rows = terminal.screen();
    marker.kill_all();
    other_marker.kill_all();
    drop(other);
    let rows = rows
        .iter()
        .map(|row| row.replace(&*folder.to_string_lossy(), "/tmp/job"));
    Screen {
        rows: rows.collect(),
        code,
    }
}

fn flags(scene: &Scene, (free, taken): (u16, u16), workers: u32) -> Vec<String> {
    let filled = |flag: &&str| {
        flag.replace("{port}", &free.to_string())
            .replace("{taken}", &taken.to_string())
    };
    std::iter::once(format!("--nproc-per-node={workers}"))
        .chain(scene.flags.iter().map(filled))
        .collect()
}
