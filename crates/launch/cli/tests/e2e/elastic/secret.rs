//! Tests of a job of three nodes with a token.
//!
//! Peers without the token have no effect, and no process leaks the token.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::wire::Operation;
use rdzv_store::{Credentials, Store as _, TcpStore, TcpStoreOptions, Token};
use rdzv_testing::TestAuthority;
use rdzv_testing::hostile::request;
use rdzv_trust::handshake::{self, ANSWER_LENGTH, HELLO_LENGTH, PROOF_LENGTH};
use tempfile::TempDir;

use super::hostile_peers::{join, operation, preamble, someone};
use super::{RendezvousPoint, first_agent, store, store_with};
use crate::harness::{DEADLINE, Job, Running, free_port, rdzv, run_shell};

const SECRET: &str = "a-token-that-must-not-be-found-anywhere";

/// Script of a worker that waits for a line in the pipe `go`.
const WAITS: &str = "echo up; until read go < go; do :; done";

/// Creates a folder with a token file.
pub(super) fn token_file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    (folder, path)
}

fn credentials(text: &str) -> Credentials {
    Credentials {
        token: Some(Token::new(text.as_bytes()).unwrap()),
        identity: None,
    }
}

/// Runs a test with the flags of a job that has a token and certificates.
pub(super) fn with_tls(token: &str, test: impl FnOnce(&[&str])) {
    let (authority, (_folder, token)) = (TestAuthority::new(), token_file(token));
    let (certificate, key) = authority.files("node");
    let ca = authority.file();
    let [token, certificate, key, ca] =
        [&token, &certificate, &key, &ca].map(|path| path.to_str().unwrap());
    let flags = ["--token-file", token, "--tls-cert", certificate];
    test(&[&flags[..], &["--tls-key", key, "--tls-ca", ca]].concat());
}

/// Starts three nodes, and waits until their workers run.
pub(super) fn start(nodes: [Job; 3]) -> [Running; 3] {
    let nodes = nodes.map(|job| job.pipe("go").start());
    for node in &nodes {
        assert!(node.says_before_it_ends("up\n"), "{}", node.stderr.so_far());
    }
    nodes
}

/// Lets the workers exit, and asserts that each started once and succeeded.
pub(super) fn finish(nodes: [Running; 3]) {
    for node in &nodes {
        node.write("go", "go\n");
    }
    for node in nodes {
        let ended = node.wait().expect(0);
        assert_eq!(ended.stdout, "up\n", "{}", ended.stderr);
    }
}

fn close() -> Vec<u8> {
    operation(&Operation::Close {
        run: "job".to_owned(),
    })
}

const STATE: &str = "/torch.rendezvous.job";

/// Returns the bytes that a peer without the token sends after its preamble.
fn attacks() -> Vec<(&'static str, Vec<u8>)> {
    let failed = operation(&Operation::Failed {
        reason: "rank 0 has lost its device".to_owned(),
    });
    let master = operation(&Operation::Master {
        round: 0,
        addr: "192.0.2.9".to_owned(),
        port: 9,
    });
    let leave = operation(&Operation::Leave);
    let join = |pid| join("job", someone(pid), 3);
    vec![
        ("read", request::get(STATE)),
        ("close", close()),
        ("join", join(1)),
        ("join and fail", [join(2), failed.clone()].concat()),
        ("flap", [join(3), leave.clone(), join(3), leave].concat()),
        ("delete", request::delete(STATE)),
        ("overwrite the state", request::set(STATE, "nothing")),
        ("hijack MASTER_ADDR", [join(4), master].concat()),
        (
            "hijack MASTER_ADDR by its key",
            request::set("/torch.rendezvous.job.0/MASTER_ADDR", "192.0.2.9"),
        ),
        ("forge a report", [join(5), failed].concat()),
        ("fill the memory", request::set("/fill", vec![0; 4 << 20])),
    ]
}

/// Sends bytes, and returns the answer until the connection closes.
fn answer(endpoint: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(endpoint).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    // The server may refuse the peer before all bytes are sent.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

pub(super) fn nodes(point: &RendezvousPoint, flags: &[&str]) -> [Job; 3] {
    [0, 1, 2].map(|_| point.node(&[&["--nnodes=3"], flags].concat(), WAITS))
}

#[test]
fn a_peer_without_the_token_has_no_effect_on_a_job() {
    let (_folder, token) = token_file(SECRET);
    let point = first_agent();
    let nodes = start(nodes(&point, &["--token-file", token.to_str().unwrap()]));
    for (name, bytes) in attacks() {
        let answered = answer(&point.endpoint, &[preamble(), bytes].concat());
        // A reset may discard the line.
        let is_refused = answered.is_empty() || answered.starts_with(b"rdzv refuses: ");
        assert!(is_refused, "{name}: {}", answered.escape_ascii());
    }
    // Idle connections, another job's token, a reflected proof, and no proof.
    let idle: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(&point.endpoint).unwrap())
        .collect();
    let (host, port) = point.endpoint.rsplit_once(':').unwrap();
    let foreign = TcpStore::connect(TcpStoreOptions {
        credentials: credentials("the token of another job"),
        ..TcpStoreOptions::new(host, port.parse().unwrap())
    });
    let text = foreign.unwrap_err().to_string();
    assert!(text.contains("a different job token"), "{text}");
    let mut reflecting = TcpStream::connect(&point.endpoint).unwrap();
    reflecting.set_read_timeout(Some(DEADLINE)).unwrap();
    reflecting.write_all(&handshake::hello([1; 32])).unwrap();
    let mut proof = [0; ANSWER_LENGTH];
    reflecting.read_exact(&mut proof).unwrap();
    reflecting
        .write_all(&[&proof[HELLO_LENGTH..], &preamble(), &close()].concat())
        .unwrap();
    let mut refused = Vec::new();
    let _ = reflecting.read_to_end(&mut refused);
    assert!(refused.is_empty() || refused.starts_with(b"rdzv refuses: "));
    drop(idle);
    let replayed = answer(&point.endpoint, &recorded_handshake(&point.endpoint));
    let after = &replayed[ANSWER_LENGTH..];
    assert!(after.is_empty() || after.starts_with(b"rdzv refuses: "));
    // A client with the token still reads the state of the job.
    let honest = TcpStore::connect(TcpStoreOptions {
        credentials: credentials(SECRET),
        ..TcpStoreOptions::new(host, port.parse().unwrap())
    });
    assert!(honest.unwrap().check(&["torch.rendezvous.job"]).is_ok());
    finish(nodes);
}

/// Returns the recorded proof of a client, followed by an attack.
///
/// A relay between the client and the server records the proof.
fn recorded_handshake(endpoint: &str) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = listener.local_addr().unwrap();
    let client = thread::spawn(move || {
        TcpStore::connect(TcpStoreOptions {
            timeout: Duration::from_millis(200),
            credentials: credentials(SECRET),
            ..TcpStoreOptions::new("127.0.0.1", relay.port())
        })
    });
    let mut from = listener.accept().unwrap().0;
    let mut to = TcpStream::connect(endpoint).unwrap();
    let mut sent = vec![0; HELLO_LENGTH];
    from.read_exact(&mut sent).unwrap();
    to.write_all(&sent).unwrap();
    let mut proof_of_server = [0; ANSWER_LENGTH];
    to.read_exact(&mut proof_of_server).unwrap();
    from.write_all(&proof_of_server).unwrap();
    let mut proof = [0; PROOF_LENGTH];
    from.read_exact(&mut proof).unwrap();
    // The relay closes the client's connection here.
    drop((from, listener));
    assert!(client.join().unwrap().is_err());
    [&sent[..], &proof, &preamble(), &close()].concat()
}

#[test]
fn without_a_token_the_same_bytes_end_the_job() {
    let point = first_agent();
    let nodes = start(nodes(&point, &[]));
    answer_one(&point.endpoint, &[preamble(), close()].concat());
    for node in nodes {
        assert_ne!(node.wait().code(), 0);
    }
}

/// Sends bytes, and waits for the first bytes of an answer.
fn answer_one(endpoint: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(endpoint).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = [0; 64];
    let _ = stream.read(&mut answer);
    let _ = stream.read(&mut answer);
}

#[test]
fn nodes_with_different_tokens_or_none_learn_which_flag_is_missing() {
    let (_one, ours) = token_file(SECRET);
    let (_other, theirs) = token_file("the token of another job");
    let point = store_with(&["--token-file", ours.to_str().unwrap()]);
    let node = |flags: &[&str]| {
        let wait = ["--nnodes=1", "--rdzv-conf=read_timeout=5"];
        let ended = point.node(&[&wait, flags].concat(), "true").run();
        assert_ne!(ended.code(), 0);
        ended.stderr
    };
    let text = node(&["--token-file", theirs.to_str().unwrap()]);
    assert!(text.contains("a different job token"), "{text}");
    let text = node(&[]);
    assert!(text.contains("--token-file"), "{text}");
    point.end();
    let point = store();
    let flags = ["--nnodes=1", "--token-file", ours.to_str().unwrap()];
    let ended = point.node(&flags, "true").run();
    assert_ne!(ended.code(), 0);
    ended.assert_stderr("this store has no job token");
    point.end();
}

/// `true` if a file contains the token, such as a file of `/proc`.
fn has_token(path: &Path) -> bool {
    contains_token(&fs::read(path).unwrap_or_default())
}

fn contains_token(bytes: &[u8]) -> bool {
    let mut parts = bytes.windows(SECRET.len());
    parts.any(|part| part == SECRET.as_bytes())
}

/// `true` if the memory of a process (and thus its core file) has the token.
fn memory_has_token(pid: i32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(memory) = fs::File::open(format!("/proc/{pid}/mem")) else {
        return false;
    };
    maps.lines().any(|line| {
        let mut fields = line.split([' ', '-']);
        let [from, to, mode] = [(); 3].map(|()| fields.next().unwrap());
        if !mode.starts_with("rw") {
            return false;
        }
        let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
        let mut bytes = vec![0; (to - from) as usize];
        let read = memory.read_at(&mut bytes, from).unwrap_or(0);
        contains_token(&bytes[..read])
    })
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_below(&entry.path())),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}

#[test]
fn the_token_is_found_in_no_process_and_in_no_text() {
    let flags = "--nproc-per-node=2 --token-file=token --log-dir=logs -t3 --events-file=events \
        --report=report.json --status-addr=127.0.0.1:0 --event-log-handler=console";
    let job = run_shell(flags, "env; echo up; read go < go; exit 3");
    let job = job.file("token", SECRET).pipe("go");
    let running = job.env("LOGLEVEL", "DEBUG").start();
    running.stdout.await_text("up\n", 2);
    assert_processes_are_clean(&running);
    let told = running.stderr.so_far();
    let page = told.split("status at http://").nth(1).unwrap();
    let address = page.split('/').next().unwrap();
    for page in ["/status", "/metrics", "/"] {
        let request = format!("GET {page} HTTP/1.0\r\n\r\n");
        let text = answer(address, request.as_bytes());
        assert!(text.len() > 20);
        assert!(!String::from_utf8_lossy(&text).contains(SECRET), "{page}");
    }
    // There is a line for each of the two workers.
    running.write("go", "go\ngo\n");
    let ended = running.wait().expect(1);
    ended.assert_stdout("RDZV_JOB_TOKEN_FILE=");
    for text in [&ended.stdout, &ended.stderr] {
        assert!(!text.contains(SECRET), "{text}");
    }
    let files = files_below(&ended.path(""));
    assert!(files.len() > 4, "{files:?}");
    for file in files.iter().filter(|file| !file.ends_with("token")) {
        assert!(!has_token(file), "{}", file.display());
    }
}

#[test]
fn an_explanation_has_the_path_of_the_token_alone() {
    for form in ["--explain", "--explain=json"] {
        let job = run_shell(&[form], "true").env("RDZV_JOB_TOKEN", SECRET);
        let ended = job.expect(0);
        ended.assert_stdout("RDZV_JOB_TOKEN_FILE");
        assert!(!(ended.stdout.clone() + &ended.stderr).contains(SECRET));
        assert!(ended.files_below(".").is_empty());
    }
    // A command that needs no token leaves no copy of it.
    let ended = rdzv(["env"]).env("RDZV_JOB_TOKEN", SECRET).expect(0);
    assert!(!ended.stdout.contains(SECRET));
    assert!(ended.files_below(".").is_empty());
}

fn assert_processes_are_clean(running: &Running) {
    let processes = running.processes();
    assert!(processes.len() >= 3, "{processes:?}");
    for (pid, name) in processes {
        for file in ["environ", "cmdline"] {
            let path = PathBuf::from(format!("/proc/{pid}/{file}"));
            assert!(!has_token(&path), "{file} of {name}");
        }
        assert!(!memory_has_token(pid), "memory of {name}");
    }
}

#[test]
fn a_token_in_a_variable_is_put_into_a_private_file_that_is_removed() {
    let script =
        "env; ls -l $RDZV_JOB_TOKEN_FILE; cat $RDZV_JOB_TOKEN_FILE > seen; echo up; read go < go";
    let job = run_shell("", script).pipe("go");
    let running = job.env("RDZV_JOB_TOKEN", SECRET).start();
    running.stdout.await_text("up\n", 1);
    assert_eq!(fs::read_to_string(running.path("seen")).unwrap(), SECRET);
    assert_processes_are_clean(&running);
    running.write("go", "go\n");
    let ended = running.wait().expect(0);
    ended.assert_stdout("-rw------- ");
    assert!(
        !ended.stdout.contains("RDZV_TOKEN_COPY"),
        "{}",
        ended.stdout
    );
    let left = files_below(&ended.path(""));
    assert!(left.iter().all(|file| file.ends_with("seen")), "{left:?}");
}

#[test]
fn three_nodes_meet_over_tls() {
    with_tls(SECRET, |flags| {
        let point = first_agent();
        let started = start(nodes(&point, flags));
        let answered = answer(&point.endpoint, &[preamble(), close()].concat());
        assert!(answered.starts_with(b"rdzv refuses: this store requires TLS"));
        finish(started);
    });
}

#[test]
fn static_nodes_with_a_token_keep_their_keys_from_workers() {
    let (_folder, token) = token_file(SECRET);
    let port = free_port().to_string();
    let token = token.to_str().unwrap();
    let usual = ["--nnodes=3", "--rdzv-id=job", "--token-file", token];
    let nodes = ["0", "1", "2"].map(|rank| {
        let own = ["--node-rank", rank, "--master-port", &port];
        run_shell(&[usual, own].concat(), WAITS)
    });
    let nodes = start(nodes);
    let worker =
        || TcpStore::connect(TcpStoreOptions::new("127.0.0.1", port.parse().unwrap())).unwrap();
    // A worker can change keys of the workers.
    worker().set("of a worker", b"1").unwrap();
    assert!(worker().check(&["of a worker"]).unwrap());
    // It cannot change other keys, such as another node's failure or name. It cannot send the
    // requests of agents either.
    for key in ["job/rdzv/news/0", "job/rdzv/nodes/0"] {
        assert!(worker().compare_set(key, b"", b"node 1\nfailed").is_err());
        assert!(worker().check(&[key]).is_err());
    }
    let endpoint = format!("127.0.0.1:{port}");
    let answered = answer(&endpoint, &[preamble(), close()].concat());
    assert_eq!(answered, 7_u32.to_le_bytes(), "the ping alone is answered");
    finish(nodes);
}

#[test]
fn a_token_that_cannot_be_used_is_a_usage_error() {
    let job = run_shell(&["--token-file=token"], "true").file("token", "short");
    let ended = job.expect(2);
    ended.assert_stderr("5 bytes is too easy to guess");
    run_shell(&["--token-file=nowhere"], "true").expect(2);
    let ended = run_shell(&["--torch-clients=any"], "true").expect(2);
    ended.assert_stderr("needs a job token");
}

#[test]
fn a_token_is_made_for_this_user_alone() {
    let ended = rdzv(["token", "--output", "token"]).expect(0);
    let text = ended.text("token");
    assert_eq!(text.trim().len(), 64);
    let mode = fs::metadata(ended.path("token"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let printed = rdzv(["token"]).expect(0).stdout;
    assert_ne!(printed, text);
    let (_folder, file) = token_file(SECRET);
    let bearer = rdzv(["token", "--bearer", file.to_str().unwrap()]).expect(0);
    assert_eq!(bearer.stdout.trim().len(), 64);
}
