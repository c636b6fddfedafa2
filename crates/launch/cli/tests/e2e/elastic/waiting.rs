//! Tests of agents that wait for others.

use std::time::{Duration, Instant};

use rdzv_store::{TcpStore, TcpStoreOptions};
use rustix::process::Signal;

use super::{PRINT_ROUND, RendezvousPoint, first_agent, printed, store, terminated};
use crate::harness::{Job, Running, ends_within, free_port, kill, run_shell, shell, torchrun};

#[test]
fn as_many_nodes_as_were_asked_for_start_together() {
    let point = first_agent();
    let script = format!("{PRINT_ROUND}; echo $TORCHELASTIC_USE_AGENT_STORE");
    let nodes = [1, 2, 1].map(|workers| {
        let workers = format!("--nproc-per-node={workers}");
        point.node(&["--nnodes=3", &workers], &script).start()
    });
    let ended = nodes.map(|node| node.wait().expect(0));
    let mut ranks: Vec<&str> = ended
        .iter()
        .flat_map(|ended| ended.stdout.lines())
        .filter(|line| line.starts_with("rank "))
        .map(|line| &line[..8])
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["rank 0/4", "rank 1/4", "rank 2/4", "rank 3/4"]);
    let masters = ended.each_ref().map(|ended| printed(&ended.stdout, "at"));
    assert!(
        masters.iter().all(|master| *master == masters[0]),
        "{masters:?}"
    );
    assert_ne!(masters[0], point.endpoint);
    assert!(ended.iter().all(|ended| ended.stdout.contains("True\n")));
    point.end();
}

// SCN-A7
#[test]
fn a_worker_that_hosts_the_store_gets_a_new_port_in_every_round() {
    let point = first_agent();
    let script = format!("{PRINT_ROUND}; echo $TORCHELASTIC_USE_AGENT_STORE; test $RDZV_ROUND = 1");
    let ended = point
        .node(&["--max-restarts=1"], &script)
        .env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        .expect(0);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!((lines.len(), lines[1], lines[3]), (4, "False", "False"));
    assert_ne!(printed(lines[0], "at"), printed(lines[2], "at"));
}

// SCN-A7
#[test]
fn the_agent_does_not_listen_at_the_port_that_is_left_to_a_worker() {
    let point = first_agent();
    let job = point
        .node(&[], &format!("{PRINT_ROUND}; cat go"))
        .pipe("go");
    let node = job.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1").start();
    node.stdout.await_text("\n", 1);
    let master = printed(&node.stdout.so_far(), "at");
    let port = |address: &str| address.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    let ports = ports_of(node.agent_pid());
    assert!(ports.contains(&port(&point.endpoint)), "{ports:?}");
    assert!(!ports.contains(&port(&master)), "{ports:?}");
    node.write("go", "");
    node.wait().expect(0);
}

// SCN-A56
#[test]
fn one_of_two_starts_alone_after_the_last_call() {
    let point = first_agent();
    let flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=1"];
    let ended = point.node(&flags, PRINT_ROUND).expect(0);
    assert_eq!(printed(&ended.stdout, "rank"), "0/1");
    let took = ended.took.as_secs_f64();
    assert!((1.0..20.0).contains(&took), "{took}");
    let line = "1 node joined, which is enough; waiting 1 s more for up to 1 further node";
    let said = &ended.stderr;
    assert_eq!(said.matches(line).count(), 1, "{said}");
}

#[test]
fn without_a_last_call_one_of_two_starts_at_once() {
    let point = first_agent();
    let flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=0"];
    let ended = point.node(&flags, PRINT_ROUND).expect(0);
    assert_eq!(printed(&ended.stdout, "rank"), "0/1");
    assert!(!ended.stderr.contains("waiting"), "{}", ended.stderr);
    // The default last call is 30 s.
    assert!(ended.took < Duration::from_secs(25), "{:?}", ended.took);
}

// SCN-A57
#[test]
fn several_nodes_without_an_endpoint_wait_in_vain() {
    let flags = ["--standalone", "--nnodes=2", "--rdzv-conf=join_timeout=1"];
    let worker = ["--no-python", "sh", "-c", "echo started"];
    let ended = torchrun(flags).args(worker).expect(1);
    assert_eq!(ended.stdout, "");
    ended.assert_last_error(
        "RendezvousTimeoutError: run '",
        &[
            "had 1 of at least 2 nodes after 1.",
            "joined: 127.0.0.1_",
            "join_timeout",
        ],
    );
}

#[test]
fn too_few_nodes_are_counted_and_named() {
    let point = store();
    let flags = ["--nnodes=3", "--rdzv-conf=join_timeout=1"];
    let first = point.node(&flags, "exit 9").start();
    let second = point.node(&flags, "exit 9").start();
    let pids = [first.agent_pid_when_there(), second.agent_pid_when_there()];
    for node in [first, second] {
        let ended = node.wait().expect(1);
        let beginning = "RendezvousTimeoutError: run 'job' had ";
        ended.assert_last_error(beginning, &["of at least 3 nodes", &point.endpoint]);
        let last = ended.last_error_line();
        let is_named = |pid: &i32| last.contains(&format!("127.0.0.1_{pid}_0"));
        assert!(pids.iter().any(is_named), "{last}");
    }
    point.end();
}

// SCN-A48
#[test]
fn a_run_that_was_closed_admits_nobody() {
    let point = store();
    point.node(&[], "exit 0").expect(0);
    let ended = point.node(&[], "echo started").expect(1);
    assert_eq!(ended.stdout, "");
    let beginning = "RendezvousClosedError: the rendezvous of run 'job' at ";
    ended.assert_last_error(beginning, &[&point.endpoint]);
    point.end();
}

// SCN-A49
#[test]
fn a_signal_while_waiting_for_peers_leaves_the_rendezvous_as_it_was() {
    let point = store();
    let waiting = point
        .node(&["--nnodes=2", "--rdzv-conf=last_call_timeout=0"], "exit 9")
        .env("LOGLEVEL", "DEBUG")
        .start();
    // The agent participates once the state contains its name.
    let named = format!("127.0.0.1_{}_0", waiting.agent_pid_when_there());
    super::await_participants(&point.endpoint, 1, |node| node == named);
    terminated(waiting).expect(-15);
    super::await_participants(&point.endpoint, 0, |_| true);
    // Two other nodes form a round without this agent.
    let nodes = [(), ()].map(|()| point.node(&["--nnodes=2"], PRINT_ROUND).start());
    for node in nodes {
        let ended = node.wait().expect(0);
        assert!(printed(&ended.stdout, "rank").ends_with("/2"));
    }
    point.end();
}

// SCN-A46
#[test]
fn who_has_finished_waits_for_the_others() {
    let point = first_agent();
    let node = |script| point.node(&["--nnodes=2"], script).pipe("go").start();
    let (late, early) = (node("echo started; cat go"), node("echo done"));
    late.stdout.await_text("started\n", 1);
    early.stdout.await_text("done\n", 1);
    assert!(!ends_within(early.pid(), Duration::from_secs(1)));
    late.write("go", "");
    late.wait().expect(0);
    let ended = early.wait().expect(0);
    assert_eq!(ended.stderr, "");
}

/// Waits for a line of an agent, terminates the agent, and returns its stderr.
fn terminated_when_it_says(node: Running, line: &str) -> String {
    node.stderr.await_text(line, 1);
    let said = node.stderr.so_far();
    terminated(node).expect(-15);
    said
}

/// Returns a rendezvous file, for `store_type=file`.
fn at_file(folder: &tempfile::TempDir) -> RendezvousPoint {
    RendezvousPoint {
        endpoint: folder.path().join("state").display().to_string(),
        store: None,
    }
}

/// Returns one of two nodes at this endpoint.
fn node_at(endpoint: &str, flags: &[&str]) -> Job {
    let meet = ["--nnodes=2", "--rdzv-endpoint", endpoint];
    run_shell(&[&meet, flags].concat(), "exit 9")
}

#[test]
fn a_wait_for_nodes_says_which_have_come_and_how_long_it_lasts() {
    let folder = tempfile::tempdir().unwrap();
    for (point, conf) in [
        (at_file(&folder), "store_type=file,join_timeout=300"),
        (first_agent(), "join_timeout=300"),
    ] {
        let flags = ["--nnodes=3", "--rdzv-conf", conf];
        let node = point.node(&flags, "exit 9").start();
        let said = terminated_when_it_says(node, "waiting for nodes: 1 of 3 (127.0.0.1); 4:5");
        assert!(
            said.contains("left; start the same command on the other nodes"),
            "{said}"
        );
        assert_eq!(said.matches("waiting for nodes").count(), 1, "{said}");
    }
}

#[test]
fn a_node_in_reserve_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let line =
        "in reserve: the job has its 1 node (127.0.0.1); this node joins when one of them is lost";
    for (point, more) in [
        (first_agent(), "--rdzv-conf=store_type=tcp"),
        (at_file(&folder), "--rdzv-conf=store_type=file"),
    ] {
        let flags = ["--nnodes=1:1", more];
        let job = point.node(&flags, "echo started; cat go").pipe("go");
        let first = job.start();
        first.stdout.await_text("started\n", 1);
        terminated_when_it_says(point.node(&flags, "exit 9").start(), line);
        first.write("go", "");
        first.wait().expect(0);
    }
}

#[test]
fn a_check_of_the_node_that_lasts_is_spoken_of() {
    let point = first_agent();
    let check = "--node-check=until [ -e fit ]; do sleep 0.01; done";
    let node = point.node(&["--nnodes=1:1", check], "echo started").start();
    let line = "waiting for the check of this node; 5";
    node.stderr.await_text(line, 1);
    let rest = " s left; the command is `until [ -e fit ]; do sleep 0.01; done`\n";
    assert!(node.stderr.so_far().contains(rest));
    assert_eq!(node.stdout.so_far(), "");
    node.write("fit", "");
    let ended = node.wait().expect(0);
    assert_eq!(ended.stdout, "started\n");
}

#[test]
fn a_node_that_waits_for_rank_0_of_its_round_says_so() {
    let folder = tempfile::tempdir().unwrap();
    for (point, more, line) in [
        (
            store(),
            "--rdzv-conf=store_type=tcp",
            "waiting for the node with rank 0 to publish the endpoint of the workers of round 0; ",
        ),
        (
            at_file(&folder),
            "--rdzv-conf=store_type=file",
            "waiting for the node with rank 0 (127.0.0.1) to publish the endpoint of the workers; ",
        ),
    ] {
        let flags = ["--nnodes=2", more];
        // The node with the smaller address has rank 0, and sends nothing after its join.
        let at = |address: &str| point.node(&flags, "exit 9").env("PET_LOCAL_ADDR", address);
        let first = at("127.0.0.1").start();
        first.stderr.await_text("waiting for nodes: 1 of 2", 1);
        kill(first.agent_pid(), Signal::STOP);
        terminated_when_it_says(at("127.0.0.2").start(), line);
        kill(first.agent_pid(), Signal::CONT);
        terminated(first).expect(-15);
        point.end();
    }
}

#[test]
fn a_node_that_waits_for_the_ranks_of_another_says_so() {
    let port = free_port();
    let flags = [
        "--nnodes=2",
        "--node-rank=0",
        "--master-addr=127.0.0.1",
        &format!("--master-port={port}"),
    ];
    let node = run_shell(&flags, "exit 9").start();
    // A node that connects to the store, and then sends nothing.
    let other = TcpStoreOptions {
        world_size: Some(2),
        ..TcpStoreOptions::new("127.0.0.1", port)
    };
    let _other = TcpStore::connect(other).unwrap();
    let line = "waiting for the ranks of other agents: 1 of ";
    terminated_when_it_says(node, line);
}

#[test]
fn a_node_that_the_rendezvous_does_not_let_go_says_so() {
    let point = store();
    let job = point.node(&["--nnodes=1:1"], "echo started; cat go");
    let node = job.pipe("go").start();
    node.stdout.await_text("started\n", 1);
    let served = point.store.as_ref().unwrap().processes();
    for (pid, _) in &served {
        kill(*pid, Signal::STOP);
    }
    node.write("go", "");
    node.stderr
        .await_text("waiting to leave the rendezvous; ", 1);
    for (pid, _) in served {
        kill(pid, Signal::CONT);
    }
    node.wait().expect(0);
    point.end();
}

#[test]
fn a_wait_for_an_endpoint_where_nobody_is_says_so() {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let flags = ["--rdzv-backend=c10d", "--rdzv-conf=is_host=0"];
    let node = node_at(&endpoint, &flags).start();
    let said = terminated_when_it_says(node, &format!("no store has answered at {endpoint} ("));
    assert!(said.contains("Connection refused"), "{said}");
}

#[test]
fn each_wait_for_an_endpoint_says_why_it_lasts() {
    let free = format!("127.0.0.1:{}", free_port());
    let (host, port) = free.split_once(':').unwrap();
    // Nothing listens at the first port, and node 0 listens at the second.
    let unused = format!("127.0.0.1:{}", free_port());
    let other = free_port();
    let etcd =
        format!("the etcd endpoint {unused} has not answered for 3 s; no round can be formed");
    let patient = format!("--rdzv-conf=read_timeout=60 --rdzv-endpoint={unused}");
    let cases = [
        (
            "--rdzv-backend=c10d --rdzv-endpoint=no-such-host.invalid:29400".to_owned(),
            "no store has answered at no-such-host.invalid:29400 (failed to lookup".to_owned(),
        ),
        (
            format!("--node-rank=0 --master-addr={host} --master-port={port}"),
            format!(
                "waiting for nodes: 1 of 2 joined at {free}; start the same command on the \
                 other nodes"
            ),
        ),
        (format!("--rdzv-backend=etcd {patient}"), etcd.clone()),
        (format!("--rdzv-backend=etcd-v2 {patient}"), etcd),
        (
            format!("--node-rank=1 --master-addr={host} --master-port={other}"),
            "no store has answered at 127.0.0.1:".to_owned(),
        ),
    ];
    let nodes = cases
        .each_ref()
        .map(|(flags, _)| run_shell(("--nnodes=2", &**flags), "exit 9").start());
    for (node, (_, line)) in nodes.into_iter().zip(&cases) {
        terminated_when_it_says(node, line);
    }
}

#[test]
fn a_name_server_that_is_silent_is_spoken_of() {
    let script = r#"
echo 'nameserver 127.0.0.1' > resolv.conf
echo 'hosts: dns' > nsswitch.conf
exec unshare --user --map-root-user --net --mount sh -ec '
ip link set lo up
mount --bind resolv.conf /etc/resolv.conf
mount --bind nsswitch.conf /etc/nsswitch.conf
python3 -c "import socket, time
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((\"127.0.0.1\", 53))
open(\"bound\", \"w\").close()
time.sleep(1000)" &
until [ -e bound ]; do sleep 0.01; done
"$RDZV" run --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node-b:29400 --rdzv-conf read_timeout=5 \
    --no-python true 2>&1 || { kill $!; wait $! || true; }'
"#;
    let node = shell(script).start();
    let line = "no name server has answered the lookup of 'node-b'; ";
    if !node.says_before_it_ends(line) {
        let ended = node.wait();
        assert!(
            std::env::var_os("RDZV_TEST_NO_NAMESPACES").is_some(),
            "no namespaces here: {}{}",
            ended.stderr,
            ended.stdout
        );
        return eprintln!("NOT TESTED: a silent name server, because there are no namespaces");
    }
    let said = node.wait().stdout;
    assert!(said.contains(" s left; check the name"), "{said}");
}

#[test]
fn a_node_whose_workers_have_succeeded_says_that_it_waits_for_the_others() {
    let fixed = format!("--master-port={}", free_port());
    let point = first_agent();
    let script = "if [ $GROUP_RANK = 0 ]; then exit; fi; echo started; cat go";
    let at = |rank: &str, script: &str| {
        let flags = ["--nnodes=2", "--master-addr=127.0.0.1", &fixed, rank];
        run_shell(&flags, script)
    };
    let first = point.node(&["--nnodes=2"], script);
    let early = [
        first.env("LOGLEVEL", "INFO").start(),
        at("--node-rank=0", "exit").start(),
    ];
    // The agent that hosts the store has rank 0. Only the other agents read from the store.
    early[0].stderr.await_text("hosts the TCP store", 1);
    let late = [
        point.node(&["--nnodes=2"], script).pipe("go"),
        at("--node-rank=1", "echo started; cat go").pipe("go"),
    ];
    let late = late.map(Job::start);
    let line =
        "the workers of this node have succeeded; waiting for the workers of the other nodes";
    for (early, late) in early.into_iter().zip(late) {
        early.stderr.await_text(line, 1);
        late.write("go", "");
        late.wait().expect(0);
        early.wait().expect(0);
    }
}

#[test]
fn a_node_says_which_workers_it_waits_for_and_how_long_it_rests() {
    let script = "
trap '' TERM
touch on$RANK
until [ -e on0 -a -e on1 ]; do sleep 0.01; done
if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then exit; fi
if [ $RANK = 0 ]; then exit 3; fi
cat go";
    let flags = ["--nproc-per-node=2", "--max-restarts=1", "--settle-delay=4"];
    let node = run_shell(&flags, script).pipe("go").start();
    node.stderr.await_text("waiting for rank 1 to exit; 2", 1);
    node.stderr.await_text(" s left; then SIGKILL follows", 1);
    node.write("go", "");
    node.stderr.await_text(
        "waiting before the next attempt, as configured; 2 s left",
        1,
    );
    node.wait().expect(0);
}

#[test]
fn an_endpoint_where_nobody_is_ends_with_its_address_and_what_to_do() {
    let port = free_port();
    let endpoint = format!("127.0.0.1:{port}");
    let conf = "--rdzv-conf=read_timeout=1,is_host=0";
    let ended = node_at(&endpoint, &["--rdzv-backend=c10d", conf]).expect(1);
    ended.assert_last_error(
        "RendezvousConnectionError: no store was found",
        &[&endpoint, "after 1.", "start an agent on that host"],
    );
}

/// Starts an agent at a silent endpoint, and terminates it after its line.
///
/// The endpoint accepts connections but sends nothing. Returns the time until the agent's exit.
fn terminated_at_a_silent_endpoint(backend: &str, line: &str) -> Duration {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = silent.local_addr().unwrap().to_string();
    let option = match backend {
        "c10d" => "--rdzv-conf=is_host=0",
        _ => "--rdzv-conf=read_timeout=60",
    };
    let backend = format!("--rdzv-backend={backend}");
    let node = node_at(&endpoint, &[&backend, option]).start();
    node.stderr.await_text(line, 1);
    let said = node.stderr.so_far();
    assert!(said.contains(&endpoint), "{said}");
    let started = Instant::now();
    terminated(node).expect(-15);
    started.elapsed()
}

#[test]
fn a_silent_endpoint_is_reported_and_a_signal_ends_the_wait_at_once() {
    for (backend, line) in [
        ("c10d", "no store has answered at"),
        ("etcd", "has not answered for"),
        ("etcd-v2", "has not answered for"),
    ] {
        let took = terminated_at_a_silent_endpoint(backend, line);
        assert!(took < Duration::from_secs(20), "{backend}: {took:?}");
    }
}

#[test]
fn a_port_of_something_else_is_distinguished_from_a_store() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let speaks = std::thread::spawn(move || {
        use std::io::Write;
        // The loop runs once for each attempt to connect.
        while let Ok((mut stream, _)) = other.accept() {
            let mut first = [0; 1];
            if std::io::Read::read(&mut stream, &mut first).unwrap() == 0 || first == *b"." {
                return;
            }
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let (endpoint, conf) = (address.to_string(), "--rdzv-conf=read_timeout=2,is_host=0");
    let ended = node_at(&endpoint, &["--rdzv-backend=c10d", conf]).expect(1);
    ended.assert_last_error(
        "RendezvousConnectionError: no store was found",
        &[&endpoint, "--rdzv-endpoint"],
    );
    std::io::Write::write_all(&mut std::net::TcpStream::connect(address).unwrap(), b".").unwrap();
    speaks.join().unwrap();
}

/// Returns the ports at which a process listens.
fn ports_of(pid: i32) -> Vec<u16> {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .map(|link| link.display().to_string())
        .collect();
    let tables = ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("/proc/net/{name}")));
    tables
        .iter()
        .flat_map(|table| table.as_ref().unwrap().lines().skip(1))
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let listens = words[3] == "0A" && sockets.contains(&format!("socket:[{}]", words[9]));
            let port = words[1].rsplit_once(':').unwrap().1;
            listens.then(|| u16::from_str_radix(port, 16).unwrap())
        })
        .collect()
}

#[test]
fn all_nodes_end_after_the_join_timeout_if_the_host_of_the_store_ends_first() {
    let site = first_agent();
    let flags = ["--nnodes=3", "--rdzv-conf=join_timeout=8"];
    let before = Instant::now();
    for node in site.two_nodes(&flags, "true") {
        let ended = node.wait().expect(1);
        ended.assert_stderr("run 'job' had 2 of at least 3 nodes after 8.");
        ended.assert_stderr("(joined: 127.0.0.1");
        ended.assert_stderr("join_timeout=SECONDS");
    }
    let took = before.elapsed();
    assert!(took < Duration::from_secs(25), "{took:?}");
}
