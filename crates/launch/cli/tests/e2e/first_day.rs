//! Tests of typical first commands of new users, and of their messages.

use std::net::TcpListener;

use rdzv_testing::Words;

use crate::harness::{Ended, Job, free_port, rdzv, run_shell, shell, torchrun};

/// Worker that prints rank, world size, address of its store and arguments.
const SHOW: [&str; 5] = [
    "--no-python",
    "sh",
    "-c",
    "echo $RANK $WORLD_SIZE $MASTER_ADDR \"$@\"",
    "sh",
];

fn own(flags: impl Words) -> Job {
    rdzv(["run"]).args(flags.words()).args(SHOW).own_face()
}

fn link(flags: impl Words) -> Job {
    torchrun(flags.words()).args(SHOW)
}

#[track_caller]
fn refused(flags: impl Words) -> String {
    let ended = own(flags).expect(2);
    assert_eq!(ended.stdout, "");
    ended.stderr
}

#[test]
fn only_a_double_dash_directly_after_the_script_is_dropped() {
    for job in [own(""), link("")] {
        let ended = job.args(["a", "--", "b"]).expect(0);
        assert_eq!(ended.stdout, "0 1 127.0.0.1 a -- b\n");
    }
}

#[test]
fn an_explicit_standalone_beats_an_inherited_number_of_nodes() {
    let ended = own("--standalone").env("PET_NNODES", "2").expect(0);
    assert_eq!(ended.stdout, "0 1 127.0.0.1\n");
    let line = "rdzv: --standalone starts a job with one node, although PET_NNODES is 2\n";
    assert_eq!(ended.stderr.matches(line).count(), 1, "{}", ended.stderr);
}

#[test]
fn standalone_with_several_explicit_nodes_is_refused() {
    let text = refused("--standalone --nnodes 2");
    let sentence = "rdzv run: --standalone starts a job with one node, but --nnodes is 2: omit one of the two flags\n";
    assert_eq!(text, sentence);
}

fn on_pod_1(job: Job) -> Job {
    let job = job.env("WORLD_SIZE", "2").env("RANK", "1");
    let job = job.env("MASTER_ADDR", "pod-0");
    job.env("JOB_COMPLETION_INDEX", "1")
}

#[test]
fn variables_that_name_several_nodes_are_reported_without_a_flag() {
    let line = "rdzv: the environment specifies 2 nodes or tasks (WORLD_SIZE=2, RANK=1, \
                JOB_COMPLETION_INDEX=1, MASTER_ADDR=pod-0), but no flag does";
    let told = |ended: Ended| ended.stderr.matches(line).count();
    assert_eq!(told(on_pod_1(own("")).expect(0)), 1);
    for flags in ["--standalone", "--nnodes 1"] {
        assert_eq!(told(on_pod_1(own(flags)).expect(0)), 0, "{flags}");
    }
    let nested = on_pod_1(own("")).env("LOCAL_RANK", "1");
    assert_eq!(told(nested.expect(0)), 0);
    let ended = on_pod_1(link("")).expect(0);
    assert!(
        !ended.stderr.contains("specifies 2 nodes"),
        "{}",
        ended.stderr
    );
}

#[test]
fn workers_get_bare_addresses_whatever_the_flag_has() {
    for address in ["[::1]", "::1", " ::1 "] {
        let flags = ["--local-addr", address];
        let ended = rdzv(["run"]).args(flags).args(SHOW).own_face().expect(0);
        assert_eq!(ended.stdout, "0 1 ::1\n", "{address}");
        let flags = ["--master-port", "29551", "--master-addr", address.trim()];
        let ended = rdzv(["run"]).args(flags).args(SHOW).own_face().expect(0);
        assert_eq!(ended.stdout, "0 1 ::1\n", "{address}");
    }
}

#[test]
fn a_machine_without_a_writable_directory_is_enough_without_a_flag_for_logs() {
    // This needs user namespaces, as the tests of cut networks do.
    let read_only = |run: &str| {
        // The programs may lie below one of the folders, so the folders keep their files.
        let folders = "for folder in /tmp /var/tmp /dev/shm; do mount --bind $folder $folder; \
                       mount -o remount,bind,ro $folder; done";
        let script = format!(
            "{folders}; cd /; exec \"$RDZV\" run {run} --no-python sh -c \"echo up; exit 3\""
        );
        let job = shell(&format!("exec unshare -rm sh -ec '{script}'"));
        job.own_face().env("TMPDIR", "/tmp")
    };
    let ended = read_only("").expect(1);
    assert_eq!(ended.stdout, "up\n");
    ended.assert_stderr("exited with code 3");
    let ended = read_only("-t 3").expect(1);
    assert_eq!(ended.stdout, "");
    ended.assert_stderr("Read-only file system");
    ended.assert_stderr("--log-dir");
}

#[test]
fn options_of_the_rendezvous_are_merged_and_shown_with_their_origins() {
    let flags = "--explain --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1";
    let conf = "--rdzv-conf join_timeout=4 --rdzv-conf close_timeout=5,join_timeout=6";
    let shown = own((flags, conf)).env("PET_RDZV_CONF", "last_call_timeout=7,close_timeout=8");
    let shown = shown.expect(0).stdout;
    let line = shown
        .lines()
        .find(|line| line.trim().starts_with("settings "));
    let line = line.unwrap_or_else(|| panic!("{shown}"));
    let options = "close_timeout=5, join_timeout=6, last_call_timeout=7";
    assert!(line.contains(options), "{line}");
    assert!(
        line.ends_with(": last_call_timeout=7 from PET_RDZV_CONF"),
        "{line}"
    );
    // Under the link, the last flag counts, as in torchrun.
    let shown = link((flags, conf)).expect(0).stdout;
    assert!(
        shown.contains(" close_timeout=5, join_timeout=6 "),
        "{shown}"
    );
}

#[test]
fn a_timeout_without_effect_is_reported_once() {
    let flags =
        "--explain --nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1 --rdzv-conf timeout=3";
    let line =
        "--rdzv-conf: timeout has no effect with c10d: join_timeout limits the wait for nodes";
    let reported = |job: Job| job.expect(0).stderr.matches(line).count();
    assert_eq!(reported(own(flags)), 1);
    assert_eq!(reported(link(flags)), 0);
    assert_eq!(reported(own("--rdzv-conf timeout=3 --nnodes 1")), 0);
}

#[test]
fn a_repeated_flag_is_named() {
    let ended = own("--role a --role b").expect(0);
    ended.assert_stderr("rdzv: --role is specified 2 times (a, b): the last value applies\n");
    let ended = link("--role a --role b").expect(0);
    assert!(!ended.stderr.contains("2 times"), "{}", ended.stderr);
}

#[test]
fn a_switch_with_a_value_is_refused() {
    let ended = rdzv(["run", "--standalone", "true", "train.py"]);
    let ended = ended.own_face().expect(2);
    let sentence = "rdzv run: --standalone takes no value, so 'true' after it was used as the script: remove it\n";
    assert_eq!(ended.stderr, sentence);
    run_shell("--standalone", "true").own_face().expect(0);
}

#[test]
fn flags_of_mpirun_are_answered_with_ours() {
    for (flag, ours) in [
        ("-n", "--nproc-per-node"),
        ("-np", "--nproc-per-node"),
        ("-ppn", "--nproc-per-node"),
        ("-H", "--rdzv-endpoint"),
        ("--hostfile", "--rdzv-endpoint"),
        ("-N", "--nnodes"),
    ] {
        let ended = rdzv(["run", flag, "4", "train.py"]).own_face().expect(2);
        let start = format!("rdzv run: rdzv run has no flag {flag}, unlike mpirun: ");
        let start = start.replacen("rdzv run: ", "", 1);
        assert!(ended.stderr.contains(&start), "{}", ended.stderr);
        ended.assert_stderr(ours);
    }
}

#[test]
fn port_0_for_several_nodes_is_refused() {
    for flags in [
        "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint node-a:0",
        "--nnodes 2 --master-addr node-a --master-port 0",
    ] {
        let text = refused(flags);
        assert!(
            text.contains("port 0 of the endpoint is a random port"),
            "{text}"
        );
        assert!(text.contains("node-a:29400"), "{text}");
    }
    let alone = "--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf last_call_timeout=0";
    own(alone).expect(0);
}

#[test]
fn an_address_in_use_names_the_process_that_holds_it() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    let process = format!("process {} (", std::process::id());
    let flags = ["--master-port".to_owned(), port.to_string()];
    let ended = rdzv(["run"]).args(flags).args(SHOW).own_face().expect(1);
    ended.assert_stderr("Address already in use");
    // Lines wrap only on a terminal.
    ended.assert_stderr(&process);
    ended.assert_stderr(&format!("listens on port {port}"));
    let store = rdzv(["store", "--host", "127.0.0.1", "--port"]);
    let ended = store.args([port.to_string()]).run();
    ended.assert_stderr(&process);
}

#[test]
fn a_module_in_the_current_folder_is_not_to_be_installed() {
    let job = rdzv(["run", "tools/train.py"]).own_face();
    std::fs::create_dir(job.path("tools")).unwrap();
    let job = job
        .file("tools/train.py", "import helpers")
        .file("helpers.py", "");
    let ended = job.expect(1);
    ended.assert_stderr("set PYTHONPATH=., or use -m ");
    let job = rdzv(["run", "train.py"]).own_face();
    let job = job.file("train.py", "import no_such_module");
    let ended = job.env("VIRTUAL_ENV", "/gone").expect(1);
    ended.assert_stderr("VIRTUAL_ENV=/gone has no Python, so workers run with /");
    ended.assert_stderr("install 'no_such_module' into /");
    ended.assert_stderr(" (the first python3 in PATH; VIRTUAL_ENV=/gone has no Python)");
}

#[test]
fn advice_never_names_a_setting_that_is_active() {
    let advice = |flags: &str| {
        let ended = run_shell(flags, "exit 3").own_face().expect(1);
        ended.stderr.matches("-r 3").count()
    };
    assert_eq!(advice(""), 1);
    for flags in ["-t 3", "-r 3", "--log-dir logs -t 0:3"] {
        assert_eq!(advice(flags), 0, "{flags}");
    }
}

#[test]
fn a_variable_that_asks_for_nodes_is_the_reason_of_the_wait() {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let flags = "--rdzv-backend c10d --rdzv-conf join_timeout=4 --rdzv-endpoint";
    let job = own((flags, &*endpoint)).env("PET_NNODES", "2");
    let ended = job.expect(1);
    ended.assert_stderr(
        "start the same command on the other nodes; these nodes come from PET_NNODES",
    );
    let ended = own((flags, &*endpoint))
        .args([""; 0])
        .env("PET_NNODES", "1")
        .expect(0);
    assert!(!ended.stderr.contains("PET_NNODES"), "{}", ended.stderr);
}
