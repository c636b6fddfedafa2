//! Tests of a rendezvous over etcd, whose server may crash.

use std::time::{Duration, Instant};

use rdzv_core::ident::RunId;
use rdzv_rendezvous::dynamic::SharedState;
use rdzv_rendezvous::etcd::EtcdState;
use rdzv_rendezvous_proto::{RendezvousState, codec};

use self::server::Server;
use rustix::process::Signal;

use super::{PRINT_ROUND, await_each, printed, terminated};
use crate::harness::{Job, free_port, kill, poll, run_shell};

#[path = "../../../../../rendezvous/driver/tests/etcd/server.rs"]
#[allow(dead_code, reason = "its own tests use more of it")]
mod server;

fn node(server: &Server, flags: &[&str], script: &str) -> Job {
    let endpoint = server.endpoint().to_string();
    let rendezvous = ["--rdzv-backend=etcd", "--rdzv-id=job", "--rdzv-endpoint"];
    let flags = [&rendezvous[..], &[&endpoint], flags].concat();
    run_shell(&flags, script).env("PET_LOCAL_ADDR", "127.0.0.1")
}

/// Waits until the state satisfies a condition.
fn await_state(server: &Server, wanted: impl Fn(&RendezvousState) -> bool) {
    let mut state = EtcdState::open(&server.options(), &RunId::new("job")).unwrap();
    poll(|| {
        let now = state.get().unwrap();
        let now = now.map(|(pickle, _)| codec::decode(&pickle).unwrap());
        if now.as_ref().is_some_and(&wanted) {
            Ok(())
        } else {
            Err(Box::new(now))
        }
    });
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn whichever_of_two_agents_is_killed_the_other_goes_on() {
    for victim in ["0", "1"] {
        let server = Server::start();
        let flags = [
            "--nnodes=1:2",
            "--rdzv-conf=last_call_timeout=3,lease_ttl=5",
        ];
        // A node that is alone in a later round exits without waiting.
        let script =
            format!("{PRINT_ROUND}; test $WORLD_SIZE = 1 -a $RDZV_ROUND -ge 1 || (cat go; exit 7)");
        let nodes = [(), ()].map(|()| node(&server, &flags, &script).pipe("go").start());
        await_each(&nodes, "/2 at ", 1);
        let [first, second] = nodes;
        let rank = printed(&first.stdout.so_far(), "rank");
        let (goes, stays) = if rank == format!("{victim}/2") {
            (first, second)
        } else {
            (second, first)
        };
        let before = Instant::now();
        kill(goes.agent_pid(), Signal::KILL);
        // The other worker then fails long before the lease expires, and no restart is left.
        stays.write("go", "");
        goes.wait().expect(-9);
        let ended = stays.wait().expect(0);
        // The time includes the lease, the last call and the start of a worker.
        assert!(before.elapsed() < Duration::from_secs(40));
        assert_eq!(printed(&ended.stdout, "rank"), "0/1");
        assert_eq!(printed(&ended.stdout, "restarts"), "0");
    }
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_crash_of_etcd_while_a_round_forms_and_while_workers_run_loses_nothing() {
    let server = Server::start();
    let flags = ["--nnodes=2"];
    let script = format!("{PRINT_ROUND}; cat go");
    let first = node(&server, &flags, &script).pipe("go").start();
    await_state(&server, |state| state.participants.len() == 1);
    server.crash();
    // The second node cannot reach the server, and waits until the server restarts.
    let second = node(&server, &flags, PRINT_ROUND).start();
    server.go_on();
    await_each([&first, &second], "/2 at ", 1);
    server.crash();
    server.go_on();
    first.write("go", "");
    let (first, second) = (first.wait().expect(0), second.wait().expect(0));
    assert_eq!(printed(&first.stdout, "at"), printed(&second.stdout, "at"));
    for stdout in [&first.stdout, &second.stdout] {
        assert_eq!(printed(stdout, "round"), "0", "{stdout}");
        assert_eq!(stdout.lines().count(), 1, "{stdout}");
    }
}

#[test]
fn an_unreachable_etcd_is_one_sentence() {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let flags = [
        "--nnodes=2",
        "--rdzv-backend=etcd",
        "--rdzv-id=job",
        "--rdzv-conf=read_timeout=1",
        "--rdzv-endpoint",
        &endpoint,
    ];
    let ended = run_shell(&flags, "true").expect(1);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    for part in [
        format!("no answer (connection refused) at the etcd endpoint {endpoint} after 1."),
        "read_timeout=SECONDS".to_owned(),
    ] {
        ended.assert_stderr(&part);
    }
    assert!(ended.took < Duration::from_secs(20), "{:?}", ended.took);
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn waits_for_nodes_and_for_etcd_are_spoken_of() {
    let server = Server::start();
    let flags = ["--nnodes=1:1"];
    let job = node(&server, &flags, "echo started; cat go").pipe("go");
    let first = job.start();
    first.stdout.await_text("started\n", 1);
    let spare = node(&server, &flags, "exit 9").start();
    spare
        .stderr
        .await_text("in reserve: the job has its 1 node (127.0.0.1); ", 1);
    first.write("go", "");
    first.wait().expect(0);
    spare.wait().expect(0);

    let other = Server::start();
    let flags = ["--nnodes=2", "--rdzv-conf=read_timeout=60"];
    let waiting = node(&other, &flags, "exit 9").start();
    waiting
        .stderr
        .await_text("waiting for nodes: 1 of 2 (127.0.0.1); ", 1);
    other.crash();
    let line = format!(
        "the etcd endpoint {} has not answered for 3 s; no round can be formed",
        other.endpoint()
    );
    waiting.stderr.await_text(&line, 1);
    terminated(waiting).expect(-15);
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn etcd_v2_is_another_name_of_etcd_and_warns_that_torchrun_cannot_join() {
    const WARNING: &str = "etcd-v2 uses etcd's v3 API: agents of torchrun cannot join run 'job'";
    let server = Server::start();
    let nodes = ["etcd", "etcd-v2"].map(|backend| {
        let backend = format!("--rdzv-backend={backend}");
        node(&server, &["--nnodes=2", &backend], PRINT_ROUND).start()
    });
    let [etcd, v2] = nodes.map(|node| node.wait().expect(0));
    assert_eq!(printed(&etcd.stdout, "at"), printed(&v2.stdout, "at"));
    assert!(!etcd.stderr.contains(WARNING), "{}", etcd.stderr);
    assert_eq!(v2.stderr.matches(WARNING).count(), 1, "{}", v2.stderr);
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_node_at_the_exit_barrier_starts_again_with_one_that_restarts() {
    let server = Server::start();
    let flags = ["--nnodes=2", "--max-restarts=1"];
    let script = "echo round $RDZV_ROUND; test $RANK = 0 && exit; sleep 0.5; \
                  test $RDZV_ROUND -ge 1 || exit 7";
    for started in [(), ()].map(|()| node(&server, &flags, script).start()) {
        let ended = started.wait().expect(0);
        assert_eq!(ended.stdout.matches("round").count(), 2, "{}", ended.stdout);
    }
}
