//! Tests of the views of a running job.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{DEADLINE, Running, free_port, kill, poll, poll_for, run_shell};

/// Worker that prints a step and the words of its pipe; a number ends it.
///
/// The last writer may still have the pipe open, and then `read` returns without a word.
const WORKER: &str = "echo step $((RANK + 7)) '<b>'; while :; do read word < go$RANK || continue; \
                      case $word in [0-9]*) exit $word ;; *) echo $word ;; esac; done";

/// A job of two nodes with one rank each.
struct TwoNodes {
    folder: TempDir,
    nodes: Vec<Running>,
}

impl TwoNodes {
    fn start(flags: &str) -> Self {
        // The path of a socket has at most 107 bytes.
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        for rank in 0..2 {
            let pipe = folder.path().join(format!("go{rank}"));
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, pipe, kind, mode, 0).unwrap();
        }
        let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
        let nodes = ["0", "1"].map(|node| {
            let shared =
                "--nnodes=2 --rdzv-backend=c10d --rdzv-id=pair --redirects=3 --log-dir=logs";
            let words: Vec<&str> = shared.split(' ').chain(flags.split(' ')).collect();
            let words = [&words[..], &[&endpoint]].concat();
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            let job = run_shell(&words[..], &WORKER.replace("go$RANK", "$PIPES/go$RANK"));
            let job = job
                .env("XDG_RUNTIME_DIR", folder.path().to_str().unwrap())
                .env("PIPES", folder.path().to_str().unwrap());
            if flags.contains("static") {
                job.env("PET_NODE_RANK", node).start()
            } else {
                job.start()
            }
        });
        let this = Self {
            folder,
            nodes: nodes.into(),
        };
        poll_for("both ranks run", || this.ps()[0]["running_here"] == 2);
        this
    }

    fn rdzv(&self, words: &str) -> Output {
        viewer(self.folder.path(), words).output().unwrap()
    }

    /// Returns stdout of a command that succeeds.
    #[track_caller]
    fn view(&self, words: &str) -> String {
        let output = self.rdzv(words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns this job in the list. Other tests run jobs of the same user.
    fn ps(&self) -> Value {
        let jobs: Vec<Value> = serde_json::from_str(&self.view("ps --json")).unwrap();
        jobs.into_iter().filter(|job| job["id"] == "pair").collect()
    }

    fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path().join("rdzv")).unwrap();
        let mut sockets: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        sockets.sort();
        sockets
    }

    fn tell(&self, rank: u32, word: impl std::fmt::Display) {
        let pipe = self.folder.path().join(format!("go{rank}"));
        fs::write(pipe, format!("{word}\n")).unwrap();
    }

    fn finish(self) {
        self.tell(0, 0);
        self.tell(1, 0);
        for node in self.nodes {
            node.wait().expect(0);
        }
    }
}

fn viewer(folder: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdzv"));
    command
        .args(words.split(' '))
        .env_clear()
        .env("XDG_RUNTIME_DIR", folder)
        .stdin(Stdio::null());
    command
}

fn attach(socket: &Path) -> BufReader<UnixStream> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(b"GET /events HTTP/1.0\r\n\r\n").unwrap();
    BufReader::new(stream)
}

/// Reads messages until `is_it` holds for all text that was read.
fn read_to(viewer: &mut BufReader<UnixStream>, is_it: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    while !is_it(&text) {
        let read = viewer.read_line(&mut text).unwrap();
        assert_ne!(read, 0, "the stream ended after\n{text}");
    }
    text
}

#[test]
fn a_user_sees_jobs_ranks_output_and_stacks_of_all_nodes_from_one() {
    let job = TwoNodes::start("");
    let listed = job.ps();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    for (key, value) in [("nodes", 2), ("ranks", 2), ("restarts", 0)] {
        assert_eq!(listed[0][key], value, "{key} of {listed}");
    }
    assert_eq!(
        (&listed[0]["id"], &listed[0]["state"]),
        (&"pair".into(), &"HEALTHY".into())
    );
    let table = job.view("ps");
    assert!(table.contains("\npair "), "{table}");
    for rank in 0..2 {
        let expected = format!("step {} <b>\n", rank + 7);
        poll_for("the line is in the log", || {
            job.view(&format!("logs pair --rank {rank}")) == expected
        });
    }
    let text = job.view("stacks pair --json");
    let stacks: Value = serde_json::from_str(&text).unwrap();
    let ranks: Vec<&Value> = stacks
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["rank"])
        .collect();
    assert_eq!(ranks, [0, 1], "{text}");
    let text = job.view("stacks pair --rank 1");
    assert!(text.starts_with("rank 1 on "), "{text}");
    for (words, part) in [
        ("stacks pear", "this user has no job 'pear' on this machine"),
        ("logs --rank", "a value is required"),
        ("top pair", "stdin and stdout must be a terminal"),
    ] {
        let output = job.rdzv(words);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words}: {stderr}");
        assert!(stderr.contains(part), "{words}: {stderr}");
    }
    let output = job.rdzv("logs pair --rank 7");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("no agent of the job has this rank"),
        "{stderr}"
    );
    job.finish();
}

#[test]
fn every_agent_shows_the_whole_job_with_its_failure_and_its_end() {
    let job = TwoNodes::start("--max-restarts=1");
    let mut viewers: Vec<_> = job.sockets().iter().map(|path| attach(path)).collect();
    for viewer in &mut viewers {
        let steps = |text: &str| text.contains("\"step\":7") && text.contains("\"step\":8");
        read_to(viewer, steps);
    }
    job.tell(1, 3);
    for viewer in &mut viewers {
        let text = read_to(viewer, |text| {
            text.contains("exited with code 3") && text.contains("round 1, 2 nodes")
        });
        assert!(text.contains("\"rank\":1"), "{text}");
    }
    job.finish();
    let mut last = String::new();
    viewers[0].read_to_string(&mut last).unwrap();
    assert!(last.contains("SUCCEEDED"), "{last}");
}

#[test]
fn a_hundred_viewers_come_and_go_without_an_effect_on_the_job() {
    let job = TwoNodes::start("--max-restarts=0");
    let sockets = job.sockets();
    for round in 0..100 {
        let mut viewer = attach(&sockets[round % 2]);
        if round % 3 > 0 {
            read_to(&mut viewer, |text| text.contains("data: "));
        }
    }
    let listed = job.ps();
    assert_eq!(
        (&listed[0]["restarts"], &listed[0]["state"]),
        (&0.into(), &"HEALTHY".into())
    );
    job.finish();
}

#[test]
fn the_socket_of_a_killed_agent_is_removed_by_the_next_list() {
    let job = TwoNodes::start("--agent-restarts=0");
    assert_eq!(job.sockets().len(), 2);
    kill(job.nodes[0].agent_pid(), Signal::KILL);
    // A process that ends still accepts connections. The list removes a socket that refuses them.
    poll_for("one agent and one socket are left", || {
        job.ps()[0]["agents_here"].as_array().unwrap().len() == 1 && job.sockets().len() == 1
    });
    let folder = job.folder.path().join("rdzv");
    let mode = folder.metadata().unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);
    for node in &job.nodes {
        kill(node.pid(), Signal::TERM);
    }
}

#[test]
fn agents_that_do_not_answer_are_listed_within_one_time_limit() {
    let job = TwoNodes::start("");
    let names = ["99991", "99992", "99993", "99994", "99995"];
    let silent = names.map(|name| {
        let path = job.folder.path().join("rdzv").join(name);
        UnixListener::bind(path).unwrap()
    });
    let before = Instant::now();
    let output = job.rdzv("ps");
    // Five limits in a row would take 25 s.
    assert!(before.elapsed() < Duration::from_secs(20));
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("\npair "), "{stdout}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    for name in names {
        let line = format!("the agent with process id {name} does not answer within 5 s\n");
        assert!(stderr.contains(&line), "{stderr}");
    }
    drop(silent);
    job.finish();
}

#[test]
fn the_restart_of_a_node_counts_after_the_loss_of_the_node() {
    let job = TwoNodes::start("--agent-restarts=0 --max-restarts=3");
    job.tell(1, 3);
    poll_for("the job has restarted", || {
        let listed = job.ps();
        listed[0]["restarts"] == 1 && listed[0]["running_here"] == 2
    });
    // The agents are in the order of their ranks.
    let agent = job.ps()[0]["agents_here"][1].as_i64().unwrap();
    kill(agent.try_into().unwrap(), Signal::KILL);
    poll_for("the other agent counts the restart", || {
        let listed = job.ps();
        listed[0]["agents_here"].as_array().unwrap().len() == 1 && listed[0]["restarts"] == 1
    });
    for node in &job.nodes {
        kill(node.pid(), Signal::TERM);
    }
}

#[test]
fn views_of_a_static_rendezvous_name_their_limit() {
    let job = TwoNodes::start("--rdzv-backend=static");
    let mut viewer = attach(&job.sockets()[0]);
    read_to(&mut viewer, |text| text.contains("\"is_alone\":true"));
    let reason = "the rendezvous of this job carries no reports of other nodes";
    let output = job.rdzv("stacks pair --json");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr, format!("rdzv stacks: this node only: {reason}\n"));
    let outputs = ["0", "1"].map(|rank| job.rdzv(&format!("logs pair --rank {rank}")));
    let mut errors = outputs.iter().map(|it| String::from_utf8_lossy(&it.stderr));
    assert!(errors.any(|text| text.contains(&format!("the rank is not on this node; {reason}"))));
    job.finish();
}

// Only root can become two users.
#[test]
fn another_user_of_the_machine_gets_nothing() {
    if !geteuid().is_root() {
        return;
    }
    let job = TwoNodes::start("");
    let socket = job.sockets().remove(0);
    let folder = job.folder.path().to_owned();
    let ask = move || {
        let other = rustix::process::Uid::from_raw(65534);
        // Only this thread becomes another user.
        rustix::thread::set_thread_res_uid(other, other, other).unwrap();
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        // The agent may have closed the connection already.
        let _ = stream.write_all(b"GET /status HTTP/1.0\r\n\r\n");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        Ok::<_, io::Error>(answer)
    };
    let kind = |result: Result<_, io::Error>| result.map_err(|error| error.kind());
    let denied = thread::spawn(ask.clone()).join().unwrap();
    assert_eq!(kind(denied), Err(io::ErrorKind::PermissionDenied));
    // Even where the file system lets the other user connect, the agent does not.
    for path in [folder.clone(), folder.join("rdzv")]
        .into_iter()
        .chain(job.sockets())
    {
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    let refused = thread::spawn(ask).join().unwrap();
    assert_eq!(kind(refused), Ok(Vec::new()));
    fs::set_permissions(folder.join("rdzv"), Permissions::from_mode(0o700)).unwrap();
    job.finish();
}

#[test]
fn a_reader_follows_the_output_of_a_rank_on_another_node_to_the_end() {
    let job = TwoNodes::start("");
    let mut reader = viewer(job.folder.path(), "logs pair --rank 1 --follow");
    let mut reader = reader.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "step 8 <b>");
    for word in ["one", "two", "three", "four"] {
        job.tell(1, word);
        assert_eq!(lines.next().unwrap().unwrap(), word);
    }
    job.finish();
    assert!(lines.next().is_none());
    poll(|| reader.try_wait().unwrap().ok_or("the reader still runs"));
}

#[test]
fn a_reader_follows_the_output_of_a_rank_over_a_restart() {
    let job = TwoNodes::start("--max-restarts=1");
    let mut reader = viewer(job.folder.path(), "logs pair --rank 1 --follow");
    let mut reader = reader.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "step 8 <b>");
    job.tell(1, 3);
    for word in ["step 8 <b>", "one"] {
        assert_eq!(lines.next().unwrap().unwrap(), word);
        job.tell(1, "one");
    }
    assert_eq!(lines.next().unwrap().unwrap(), "one");
    job.finish();
    assert!(lines.next().is_none());
    poll(|| reader.try_wait().unwrap().ok_or("the reader still runs"));
}

#[test]
fn the_timeline_of_two_nodes_is_a_page_and_a_trace() {
    let job = TwoNodes::start("--events-file=events.jsonl");
    let files = [0, 1].map(|node| job.nodes[node].path("events.jsonl"));
    let folder = tempfile::tempdir().unwrap();
    let [page, trace] = ["run.html", "run.trace"].map(|name| folder.path().join(name));
    let kept: Vec<PathBuf> = (0..2)
        .map(|node| folder.path().join(node.to_string()))
        .collect();
    job.tell(0, 0);
    job.tell(1, 0);
    let TwoNodes {
        nodes,
        folder: runtime,
    } = job;
    for (node, (from, to)) in nodes.into_iter().zip(files.iter().zip(&kept)) {
        let ended = node.wait().expect(0);
        fs::copy(from, to).unwrap();
        drop(ended);
    }
    let words = format!(
        "timeline {} {} -o {} --perfetto {}",
        kept[0].display(),
        kept[1].display(),
        page.display(),
        trace.display()
    );
    let output = viewer(runtime.path(), &words).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text.lines().filter(|line| line.ends_with(" s")).count(),
        2,
        "{text}"
    );
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("round 0, 2 nodes") && page.contains("pair"));
    assert!(fs::read(trace).unwrap().len() > 200);
    let output = viewer(runtime.path(), &format!("timeline {}", kept[0].display())).output();
    assert_eq!(output.unwrap().status.code(), Some(2));
}
