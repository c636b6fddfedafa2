//! Tests of the workers' environment and command line.

use rdzv_store::{Store as _, TcpStore, TcpStoreOptions};

use crate::harness::{Ended, free_port, rdzv, run_shell, shell, torchrun};

/// Script of a worker that prints its ranks.
const RANKS: &str = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE";

/// Returns the common values of two workers, from lines of `rank value`.
#[track_caller]
fn agreed(ended: &Ended) -> String {
    let lines = ended.sorted();
    let values = lines.iter().map(|line| line.split_once(' ').unwrap().1);
    let values: Vec<&str> = values.collect();
    assert_eq!(values, [values[0]; 2], "{lines:?}");
    values[0].to_owned()
}

// SCN-A1
#[test]
fn one_worker_gets_the_arguments_and_the_launcher_says_nothing() {
    let script = "echo \"$*\" $RANK $WORLD_SIZE";
    let ended = torchrun(["--no-python", "sh", "-c", script, "w", "a", "--x=1"]).expect(0);
    assert_eq!(ended.stdout, "a --x=1 0 1\n");
    assert_eq!(ended.stderr, "");
}

#[test]
fn every_variable_of_the_contract_is_set() {
    let job = run_shell("--max-restarts 3 --role trn", "env");
    let ended = job.env("PET_LOG_DIR", "logs").own_face().expect(0);
    let value = |name: &str| {
        let prefix = format!("{name}=");
        let mut lines = ended.stdout.lines();
        let line = lines.find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("{name} is not set:\n{}", ended.stdout))
    };
    for (name, expected) in [
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("GROUP_RANK", "0"),
        ("GROUP_WORLD_SIZE", "1"),
        ("ROLE_NAME", "trn"),
        ("ROLE_RANK", "0"),
        ("ROLE_WORLD_SIZE", "1"),
        ("TORCHELASTIC_RESTART_COUNT", "0"),
        ("TORCHELASTIC_MAX_RESTARTS", "3"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        (
            "TORCHELASTIC_SIGNALS_TO_HANDLE",
            "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        ),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ("RDZV_ROUND", "0"),
        ("RDZV_REPLACED", ""),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
    assert!(value("TORCHELASTIC_ERROR_FILE").ends_with("/attempt_0/0/error.json"));
    assert!(value("TORCHELASTIC_ERROR_FILE").starts_with('/'));
    assert_ne!(value("MASTER_PORT"), "0");
    // The variables are the round, the replaced ranks, and the marker of the test.
    let ours = ended
        .stdout
        .lines()
        .filter(|line| line.starts_with("RDZV_"));
    assert_eq!(ours.count(), 3, "{}", ended.stdout);
}

// SCN-A2
#[test]
fn standalone_workers_share_a_store_and_a_random_run_id() {
    let script = "echo $RANK $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_RUN_ID \
                  $TORCHELASTIC_USE_AGENT_STORE $OMP_NUM_THREADS";
    let ended = run_shell("--standalone --nproc-per-node 2", script).expect(0);
    let values = agreed(&ended);
    let parts: Vec<&str> = values.split(' ').collect();
    assert_eq!(parts[1].len(), "12345678-1234-1234-1234-123456789abc".len());
    assert_eq!(parts[1].matches('-').count(), 4);
    assert_eq!(parts[2..], ["True", "1"]);
    let stars = "*".repeat(41);
    let boxed: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(boxed.len(), 4, "{}", ended.stderr);
    let is_logged = |line: &&str| line.starts_with('W') && line.contains("] ");
    assert!(boxed.iter().all(is_logged));
    assert!(boxed[0].ends_with("] "));
    assert!(boxed[1].ends_with(&stars) && boxed[3].ends_with(&stars));
    assert!(boxed[2].contains("Setting OMP_NUM_THREADS environment variable for each process"));
}

// SCN-A3
#[test]
fn a_number_of_threads_that_is_set_stays() {
    let ended = run_shell("--nproc-per-node 2", "echo $RANK $OMP_NUM_THREADS")
        .env("OMP_NUM_THREADS", "7")
        .expect(0);
    assert_eq!(agreed(&ended), "7");
    assert_eq!(ended.stderr, "");
}

// SCN-A4
#[test]
fn a_master_port_makes_the_rendezvous_static() {
    let port = free_port().to_string();
    let script = "echo $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_RUN_ID";
    let ended = run_shell(&["--master-port", &port, "--node-rank", "0"], script).expect(0);
    assert_eq!(ended.stdout, format!("127.0.0.1 {port} none\n"));
}

// SCN-A5
#[test]
fn an_endpoint_makes_the_rendezvous_static() {
    let port = free_port();
    let endpoint = format!("127.0.0.1:{port}");
    let script = "echo $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_USE_AGENT_STORE";
    let ended = run_shell(&["--rdzv-endpoint", &endpoint], script).expect(0);
    assert_eq!(ended.stdout, format!("127.0.0.1 {port} True\n"));
}

// SCN-A6, without the rendezvous store, which only several nodes need
#[test]
fn a_dynamic_backend_on_one_node_uses_what_was_given() {
    let script = "echo $MASTER_ADDR $TORCHELASTIC_RUN_ID $ROLE_NAME $MASTER_PORT";
    let port = free_port();
    let endpoint = format!("localhost:{port}");
    let flags = [
        "--rdzv-backend=c10d",
        "--rdzv-id=jobX",
        "--rdzv-endpoint",
        &endpoint,
    ];
    let job = run_shell(&flags, script).env("PET_LOCAL_ADDR", "127.0.0.1");
    let said = job.env("PET_ROLE", "trn").expect(0).stdout;
    assert!(said.starts_with("127.0.0.1 jobX trn "), "{said}");
    assert!(!said.contains(&format!(" {port}\n")), "{said}");
}

// SCN-A7
#[test]
fn without_a_shared_store_the_port_is_new_in_every_attempt() {
    let script = "echo $MASTER_PORT $TORCHELASTIC_USE_AGENT_STORE; exit 3";
    let job = run_shell("--max-restarts 1", script);
    let ended = job.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1").expect(1);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let [first, second] = lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        first.ends_with(" False") && second.ends_with(" False"),
        "{lines:?}"
    );
    assert_ne!(first, second);
}

#[test]
fn two_static_nodes_make_one_world() {
    let port = free_port().to_string();
    let node = |rank: &str, size: &str, role: &str| {
        let flags = ["--nnodes", "2", "--node-rank", rank, "--master-port", &port];
        let flags = [&flags[..], &["--nproc-per-node", size, "--role", role]].concat();
        let script = "echo $RANK $WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $LOCAL_WORLD_SIZE \
            $MASTER_PORT $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE";
        run_shell(&flags, script).start()
    };
    let (second, first) = (node("1", "2", "learner"), node("0", "1", "actor"));
    assert_eq!(
        first.wait().expect(0).sorted(),
        [format!("0 3 0 2 1 {port} actor 0 1")]
    );
    assert_eq!(
        second.wait().expect(0).sorted(),
        [
            format!("1 3 1 2 2 {port} learner 0 2"),
            format!("2 3 1 2 2 {port} learner 1 2")
        ]
    );
}

#[test]
fn every_attempt_meets_at_an_empty_store() {
    let port = free_port().to_string();
    let alone = ["--node-rank", "0", "--master-port", &port];
    for flags in [&[][..], &alone] {
        let flags = [&["--max-restarts", "2"][..], flags].concat();
        let script = "echo at $MASTER_ADDR $MASTER_PORT; until read go < go; do :; done; exit 1";
        let running = run_shell(&flags, script).pipe("go").start();
        for _ in 0..3 {
            let at = running.stdout.await_line("at ");
            let (host, port) = at.split_once(' ').unwrap();
            let store = TcpStoreOptions::new(host, port.parse().unwrap());
            let store = TcpStore::connect(store).unwrap();
            assert_eq!(store.add("shared/key", 1).unwrap(), 1);
            running.write("go", "go\n");
        }
        running.wait().expect(1);
    }
}

// SCN-A8
#[test]
fn virtual_local_ranks_give_each_worker_one_device() {
    let script = "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES";
    let ended = run_shell("--virtual-local-rank --nproc-per-node 2", script)
        .env("CUDA_VISIBLE_DEVICES", "4, 5")
        .expect(0);
    assert_eq!(ended.sorted(), ["0 0 4", "1 0 5"]);
}

// SCN-A10
#[test]
fn only_the_local_rank_is_substituted_in_arguments() {
    let ended = run_shell("--nproc-per-node 2", "echo \"$1 $2 $3\"")
        .args(["w", "${local_rank}", "$$x", "${foo}"])
        .expect(0);
    assert_eq!(ended.sorted(), ["0 $x ${foo}", "1 $x ${foo}"]);
}

// SCN-A11
#[test]
fn flags_have_defaults_in_the_environment() {
    let job = || run_shell("", RANKS).env("PET_NPROC_PER_NODE", "2");
    assert_eq!(job().expect(0).sorted(), ["0 0 2 2", "1 1 2 2"]);
    let ended = run_shell("--nproc-per-node 1", RANKS)
        .env("PET_NPROC_PER_NODE", "2")
        .expect(0);
    assert_eq!(ended.stdout, "0 0 1 1\n");
}

// SCN-A13
#[test]
fn flags_behind_the_script_are_the_scripts() {
    let ended = rdzv(["run", "--no-python", "echo", "--nproc-per-node", "3"]).expect(0);
    assert_eq!(ended.stdout, "--nproc-per-node 3\n");
}

#[test]
fn a_run_id_that_is_given_is_kept_on_one_node() {
    let script = "echo $TORCHELASTIC_RUN_ID $TORCHELASTIC_ERROR_FILE";
    let ended = run_shell("--rdzv-id mine --log-dir logs", script).expect(0);
    assert!(ended.stdout.starts_with("mine /"), "{}", ended.stdout);
    ended.assert_stdout("/logs/mine_");
}

#[test]
fn a_rendezvous_is_logged_with_all_that_it_settled() {
    let ended = run_shell("--nproc-per-node 2 --role trn", "exit 0")
        .env("LOGLEVEL", "INFO")
        .expect(0);
    ended.assert_stderr("[trn] Rendezvous complete for workers. Result:");
    for field in [
        "restart_count=0",
        "master_addr=127.0.0.1",
        "master_port=",
        "group_rank=0",
        "group_world_size=1",
        "local_ranks=[0, 1]",
        "role_ranks=[0, 1]",
        "global_ranks=[0, 1]",
        "role_world_sizes=[2, 2]",
        "global_world_sizes=[2, 2]",
        "event_log_handler=null",
    ] {
        ended.assert_stderr(field);
    }
}

#[test]
fn a_machine_without_proc_is_enough_for_a_launch() {
    // This needs user namespaces, as the tests of cut networks do.
    let without_proc = |run: &str| {
        let script = format!("mount -t tmpfs none /proc; exec \"$RDZV\" run --no-python {run}");
        shell(&format!("exec unshare -rm sh -ec '{script}'")).run()
    };
    let ended = without_proc("--nproc-per-node 2 sh -c \"echo rank \\$RANK\"").expect(0);
    assert_eq!(ended.sorted(), ["rank 0", "rank 1"]);
    // A line reports what is missing on the machine, and a failure is still reported.
    let ended = without_proc("sh -c \"exit 3\"").expect(1);
    for part in ["/proc is not mounted", "exitcode  : 3"] {
        ended.assert_stderr(part);
    }
}

#[test]
fn a_host_without_a_free_local_port_is_named_as_the_cause() {
    // This needs user namespaces and bash, whose `/dev/tcp` keeps connections open.
    let script = "ip link set lo up; echo 40000 40003 > /proc/sys/net/ipv4/ip_local_port_range
        \"$RDZV\" store --port 29400 & trap \"kill $!; wait\" EXIT
        until exec 3<>/dev/tcp/127.0.0.1/29400; do sleep 0.1; done
        exec 4<>/dev/tcp/127.0.0.1/29400 5<>/dev/tcp/127.0.0.1/29400 6<>/dev/tcp/127.0.0.1/29400
        \"$RDZV\" run --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:29400 \
            --rdzv-conf is_host=0,read_timeout=1 --no-python true";
    let ended = shell(&format!("exec unshare -rn bash -ec '{script}'")).expect(1);
    ended.assert_stderr(
        "Cannot assign requested address (os error 99): every port of net.ipv4.ip_local_port_range \
         (40000-40003) is in use; widen that range",
    );
}
