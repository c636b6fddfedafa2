//! Tests of health, metrics, status and requests to workers over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::{DEADLINE, Running, free_port, poll, poll_for, run_fixture, run_shell};

/// Sends a request on a new connection, and returns status code and body.
fn request(port: u16, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let text = format!("{method} {path} HTTP/1.0\r\nHost: here\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, body.to_owned())
}

pub(crate) fn get(port: u16, path: &str) -> (u16, String) {
    request(port, "GET", path)
}

/// Returns the port of a server from the log of the program.
pub(crate) fn logged_port(running: &Running, what: &str) -> u16 {
    let text = format!("{what} at http://");
    running.stderr.await_text(&text, 1);
    let said = running.stderr.so_far();
    let line = said.lines().find(|line| line.contains(&text)).unwrap();
    let address = line.trim_end_matches('/');
    address.rsplit(':').next().unwrap().parse().unwrap()
}

#[test]
fn a_run_can_be_looked_at_while_it_goes_on() {
    let job = run_fixture(
        "--nproc-per-node=2 --max-restarts=3 --rdzv-id=job --role=trainer --redirects=3 --log-dir=logs --status-addr=0",
        "attempt=0?rank=0?exit:3 attempt=0?hang rank=0?await:end0 rank=1?await:end1",
    )
    .pipe("end0")
    .pipe("end1");
    let running = job.env("LOGLEVEL", "INFO").start();
    let port = logged_port(&running, "status");
    let status = poll(|| {
        let (code, text) = get(port, "/status");
        assert_eq!(code, 200);
        let status: Value = serde_json::from_str(&text).unwrap();
        let is_it = status["restart_count"] == 1 && status["state"] == "HEALTHY";
        if is_it { Ok(status) } else { Err(text) }
    });
    let alive = "agent loop: alive\nstore server: alive\n";
    assert_eq!(get(port, "/"), (200, alive.to_owned()));
    assert_eq!(status["run_id"], "job");
    let workers = status["workers"].as_array().unwrap();
    let ranks: Vec<_> = workers.iter().map(|worker| &worker["rank"]).collect();
    assert_eq!(ranks, [0, 1]);
    assert!(workers.iter().all(|worker| worker["running"] == true));

    let (code, text) = get(port, "/metrics");
    assert_eq!(code, 200);
    assert!(text.ends_with("# EOF\n"), "{text}");
    for (name, more, value) in [
        ("worker_exits_total", ",cause=\"exit_code\"", "1"),
        ("worker_exits_total", ",cause=\"stopped_by_agent\"", "1"),
        ("events_total", ",event=\"worker_started\"", "4"),
        ("rendezvous_duration_seconds_count", "", "2"),
        ("restarts_used", "", "1.0"),
        ("restarts_remaining", "", "2.0"),
        ("worker_group_state", ",state=\"healthy\"", "1.0"),
        ("worker_group_state", ",state=\"failed\"", "0.0"),
        ("worker_running", ",local_rank=\"1\",rank=\"1\"", "1.0"),
        ("worker_exit_codes_total", ",exit_code=\"3\"", "1"),
        (
            "worker_log_bytes",
            ",local_rank=\"0\",stream=\"stdout\"",
            "0.0",
        ),
    ] {
        let labels = format!("run_id=\"job\",role=\"trainer\",node={}", status["node"]);
        let line = format!("rdzv_{name}{{{labels}{more}}} {value}\n");
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    running.write("end0", "x");
    running.write("end1", "x");
    running.wait().expect(0);
}

#[test]
fn the_health_port_tells_nothing_but_health_and_before_there_is_a_rendezvous() {
    let (port, endpoint) = (free_port(), free_port());
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{endpoint}");
    let running = run_shell(&["--nnodes=2", "--rdzv-backend=c10d", &endpoint], "exit 0")
        .env("TORCHELASTIC_HEALTH_CHECK_PORT", &port.to_string())
        .env("LOGLEVEL", "INFO")
        .start();
    assert_eq!(logged_port(&running, "health"), port);
    // The second node never joins. The port is open even before the agent is ready.
    poll_for("the agent is alive", || {
        let (code, text) = get(port, "/");
        assert_eq!(code, 200, "{text}");
        let is_alive = text == "agent loop: alive\n";
        assert!(is_alive || text == "starting\n", "{text}");
        is_alive
    });
    for path in ["/status", "/metrics", "/workers/0/handler/"] {
        assert_eq!(get(port, path).0, 404, "{path}");
    }
    running.signal(rustix::process::Signal::TERM);
    running.wait();
}

#[test]
fn a_health_port_that_is_none_and_one_that_is_taken() {
    let ended = run_shell("", "true")
        .env("TORCHELASTIC_HEALTH_CHECK_PORT", "http")
        .env("LOGLEVEL", "INFO")
        .expect(0);
    let expected =
        "TORCHELASTIC_HEALTH_CHECK_PORT='http' is not a port, so there is no health check";
    ended.assert_stderr(expected);

    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let flag = format!("--status-addr=127.0.0.1:{port}");
    let ended = run_shell(&*flag, "true").expect(1);
    let expected = format!("OSError: --status-addr 127.0.0.1:{port}: Address already in use");
    ended.assert_stderr(&expected);
}

// SCN-A53
#[test]
fn requests_to_a_worker_are_passed_on_as_they_are() {
    let job = run_shell(
        "--status-addr=0 --worker-server",
        "echo $TORCH_WORKER_SERVER_SOCKET > socket; cat end",
    )
    .pipe("socket")
    .pipe("end");
    let running = job.env("LOGLEVEL", "INFO").start();
    let port = logged_port(&running, "status");
    let socket = std::fs::read_to_string(running.path("socket")).unwrap();
    let socket = PathBuf::from(socket.trim());
    let (code, text) = get(port, "/workers/0/handler/");
    assert_eq!(code, 502);
    assert!(text.contains("local rank 0 does not answer"), "{text}");

    let server = UnixListener::bind(&socket).unwrap();
    let worker = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let mut asked = vec![0; 4096];
        let count = stream.read(&mut asked).unwrap();
        let answer =
            b"HTTP/1.1 404 Not Found\r\ncontent-type: text/x-odd\r\ncontent-length: 4\r\n\r\nodd\n";
        stream.write_all(answer).unwrap();
        String::from_utf8_lossy(&asked[..count]).into_owned()
    });
    let answer = request(port, "POST", "/workers/0/handler/some%20name?a=1&b=%2F");
    assert_eq!(answer, (404, "odd\n".to_owned()));
    let asked = worker.join().unwrap();
    let line = "POST /handler/some%20name?a=1&b=%2F HTTP/1.1\r\n";
    assert!(asked.starts_with(line), "{asked}");

    running.write("end", "x");
    running.wait().expect(0);
    assert!(!socket.parent().unwrap().exists(), "it goes with the run");
}
