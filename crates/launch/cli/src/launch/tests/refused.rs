//! Tests of values and combinations that are refused, with the error text.

use rdzv_agent::config::RendezvousPlan;

use super::{case, warnings};
use crate::exit::Refusal;

#[test]
fn impossible_values_raise_what_torchrun_raises() {
    for (line, text) in [
        (
            &["--nnodes", "a"][..],
            "ValueError: invalid literal for int() with base 10: 'a'",
        ),
        (
            &["--nnodes="],
            "ValueError: invalid literal for int() with base 10: ''",
        ),
        (
            &["--nnodes", "1:2:3"],
            "RuntimeError: nnodes=1:2:3 is not in \"MIN:MAX\" format",
        ),
        (
            &["--nnodes", "0"],
            "AssertionError: min_nodes must be > 0 and <= max_nodes, got min_nodes=0, max_nodes=0",
        ),
        (
            &["--nnodes", "2:1"],
            "AssertionError: min_nodes must be > 0 and <= max_nodes, got min_nodes=2, max_nodes=1",
        ),
        (
            &["--max-restarts", "-1"],
            "AssertionError: max_restarts must be >= 0",
        ),
        (
            &["--nproc-per-node", "abc"],
            "ValueError: Unsupported nproc_per_node value: abc",
        ),
        (
            &["--nproc-per-node", "1.5"],
            "ValueError: Unsupported nproc_per_node value: 1.5",
        ),
        (
            &["--nproc-per-node", "gpu"],
            "ValueError: Cuda is not available.",
        ),
        (
            &["--nproc-per-node", "xpu"],
            "ValueError: Xpu is not available.",
        ),
        (
            &["--nproc-per-node", "0"],
            "AssertionError: nproc_per_node must be > 0, got 0",
        ),
        (
            &["--monitor-interval", "0"],
            "AssertionError: monitor_interval must be > 0, got 0",
        ),
        (
            &["--no-python", "-m"],
            "ValueError: Don't use both the '--no-python' flag and the '--module' flag at the \
             same time.",
        ),
        (
            &["--rdzv-backend", "foo"],
            "ValueError: The rendezvous backend 'foo' is not registered. Did you forget to call \
             `register`?",
        ),
        (
            &["--rdzv-conf", "foo"],
            "ValueError: The rendezvous configuration option 'foo' must have a value specified.",
        ),
        (
            &["--rdzv-conf", "=3"],
            "ValueError: The rendezvous configuration string must be in format \
             <key1>=<value1>,...,<keyN>=<valueN>.",
        ),
        (
            &["--rdzv-endpoint", "a:65536"],
            "ValueError: The port number of the rendezvous endpoint 'a:65536' must be an integer \
             between 0 and 65536.",
        ),
        (
            &["--rdzv-endpoint", "localhost"],
            "ValueError: port is missing in endpoint: localhost. Try to specify --master-port",
        ),
        (
            &["--local-ranks-filter", "a"],
            "ValueError: --local_ranks_filter must be a comma-separated list of integers e.g. \
             --local_ranks_filter=0,1,2",
        ),
        (
            &["-r", "4"],
            r"ValueError: 4 does not match: <^[0123]$> or <^(\d:[0123],)*(\d:[0123])$>",
        ),
        (
            &["--log-dir", "taken"],
            "NotADirectoryError: log_dir: taken is a file",
        ),
        (
            &["--log-dir", "/dev/null", "--duplicate-stdout-filters", "a"],
            "NotADirectoryError: [Errno 20] Not a directory: '/dev/null/filtered_stdout.log'",
        ),
        (
            &["--logs-specs", "bogus"],
            "ValueError: Could not find entrypoint under 'torchrun.logs_specs[bogus]' key",
        ),
        (
            &["--shutdown-timeout", "-1"],
            "ValueError: shutdown_timeout must be non-negative, got -1",
        ),
        (
            &["--numa-binding", "node"],
            "RuntimeError: No accelerator available for NUMA binding",
        ),
        (&["--event-log-handler", "bogus"], "KeyError: 'bogus'"),
        (
            &["--signals-to-handle", "SIGTERM,SIGKILL"],
            "OSError: [Errno 22] Invalid argument",
        ),
    ] {
        let line = [line, &["s.py"]].concat();
        let refusal = case(&line).files(&["/work/taken"]).refusal();
        assert!(matches!(refusal, Refusal::Raised(_)), "{line:?}");
        assert_eq!(refusal.to_string(), text, "{line:?}");
    }
}

#[test]
fn a_node_rank_beyond_the_nodes_is_refused_at_once() {
    let refusal = case(&["--nnodes", "2", "--node-rank", "2", "s.py"]).refusal();
    assert_eq!(
        refusal.to_string(),
        "ValueError: --node-rank 2 is not in 0..2 (--nnodes 2): nodes are numbered from 0"
    );
}

#[test]
fn a_static_rendezvous_with_spare_nodes_is_refused() {
    let refusal = case(&["--nnodes", "4", "--spares", "1", "s.py"]).refusal();
    assert_eq!(
        refusal.plain(),
        "--spares: spare nodes need a dynamic rendezvous, such as --rdzv-backend c10d, without \
         --standalone"
    );
    assert!(matches!(refusal, Refusal::Parser { .. }));
}

#[test]
fn options_of_the_rendezvous_that_have_no_effect_are_refused_or_warned_of() {
    let line = [
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=h:1",
        "--rdzv-conf=join_timout=3",
        "s.py",
    ];
    let sentence = "--rdzv-conf: the rendezvous backend 'c10d' has no option 'join_timout' (did you mean \
                    'join_timeout'?)";
    let refusal = case(&line).strict().refusal();
    assert_eq!(refusal, Refusal::Usage(sentence.to_owned()));
    let launch = case(&line).launch();
    let warned = format!("{sentence}; it has no effect");
    assert!(
        warnings(&launch).contains(&&*warned),
        "{:?}",
        warnings(&launch)
    );
}

#[test]
fn settings_about_voters_that_have_no_effect_are_warned_of() {
    let no_fence = "--rdzv-conf: fence=auto has no effect: it needs at least three voters (from \
                    three nodes, or a list of endpoints), an endpoint with a port other \
                    than 0, and --agent-restarts of at least 1";
    let list = "RDZV_CONTACT_POINTS has no effect with a list of endpoints, because the list names \
                the voters";
    for (flag, endpoint, options, expected) in [
        ("--nnodes=2", "h:1", "fence=auto", Some(no_fence)),
        ("--nnodes=3", "h:1", "fence=auto", None),
        ("--nnodes=3", "h:0", "fence=auto", Some(no_fence)),
        ("--nnodes=3", "h:1", "fence=auto,voters=1", Some(no_fence)),
        (
            "--agent-restarts=0",
            "a:1,b,c",
            "fence=auto",
            Some(no_fence),
        ),
        ("--nnodes=1", "h:1", "fence=off", None),
        ("--nnodes=2", "a:1,b:1,c:1", "fence=auto", Some(list)),
    ] {
        let line = [
            "--rdzv-backend=c10d",
            flag,
            "--rdzv-endpoint",
            endpoint,
            "--rdzv-conf",
            options,
            "s.py",
        ];
        let launch = case(&line).with("RDZV_CONTACT_POINTS", "a:2").launch();
        let about_voters = |warning: &&str| [no_fence, list].contains(warning);
        let warned = warnings(&launch).into_iter().find(about_voters);
        assert_eq!(warned, expected, "{flag} {endpoint} {options}");
    }
}

#[test]
fn known_voters_have_ports() {
    let line = ["--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "s.py"];
    let with = |value| case(&line).with("RDZV_CONTACT_POINTS", value);
    let refusal = with("a:2,b").refusal().to_string();
    assert!(
        refusal.starts_with("RDZV_CONTACT_POINTS contains 'b', which is not HOST:PORT; "),
        "{refusal}"
    );
    let RendezvousPlan::Dynamic { parameters } = with("a:2, b:3").launch().plan.rendezvous.plan
    else {
        panic!("it is dynamic");
    };
    let endpoints = parameters.known_voters.iter().map(ToString::to_string);
    assert_eq!(endpoints.collect::<Vec<_>>(), ["a:2", "b:3"]);
}

#[test]
fn voters_that_cannot_be_are_refused() {
    for (endpoint, voters, sentence) in [
        (
            "a:1,b",
            "voters=3",
            "3 voters need 3 endpoints, but 2 are listed; list them as a:29400,b,c",
        ),
        ("a:1,b,c", "voters=2", "voters is 2, but must be 1, 3 or 5"),
        ("a:1,b,a", "voters=3", "the endpoint a:1 is listed twice"),
    ] {
        let flags = [
            "--rdzv-backend=c10d",
            "--nnodes=2",
            "--rdzv-endpoint",
            endpoint,
        ];
        let line = [&flags[..], &["--rdzv-conf", voters, "s.py"]].concat();
        let refusal = case(&line).strict().refusal();
        assert!(refusal.to_string().contains(sentence), "{refusal}");
    }
}

#[test]
fn values_of_c10d_that_cannot_be_are_refused_before_anything_starts() {
    for (settings, sentence) in [
        ("fence=maybe", "fence is maybe, but must be off or auto"),
        (
            "node_timeout=0",
            "node_timeout is 0, but must be from 0.5 to 3600 seconds",
        ),
        (
            "fence_kill=0",
            "fence_kill is 0, but must be a positive number of seconds",
        ),
        (
            "coordinator_timeout=0",
            "The coordinator timeout must be a positive integer.",
        ),
        (
            "join_timeout=0",
            "The join timeout (0:00:00) must be positive.",
        ),
    ] {
        let flags = ["--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=h:1"];
        let line = [&flags[..], &["--rdzv-conf", settings, "s.py"]].concat();
        let refusal = case(&line).strict().refusal();
        assert!(refusal.to_string().contains(sentence), "{refusal}");
        // torchrun reports this mistake only when it joins.
        case(&line).launch();
    }
}

#[test]
fn every_backend_takes_the_options_that_its_help_names() {
    for (backend, options) in [
        ("static", "timeout=9,rank=0,store_max_memory=1GiB"),
        (
            "c10d",
            "timeout=9,join_timeout=3,store_type=tcp,read_timeout=3,is_host=1",
        ),
        (
            "etcd",
            "lease_ttl=3,etcd_prefix=/x,protocol=http,last_call_timeout=1",
        ),
        (
            "etcd-v2",
            "protocol=https,cacert=/x,keep_alive_max_attempt=3",
        ),
    ] {
        let (backend, options) = (
            format!("--rdzv-backend={backend}"),
            format!("--rdzv-conf={options}"),
        );
        let line: Vec<&'static str> = vec![
            backend.leak(),
            "--rdzv-endpoint=h:1",
            "--nnodes=2",
            options.leak(),
            "s.py",
        ];
        case(&line).strict().launch();
    }
}

#[test]
fn rdzv_run_refuses_a_signal_that_does_not_exist() {
    let refusal = case(&["--signals-to-handle=SIGFOO", "s.py"])
        .strict()
        .refusal();
    assert_eq!(
        refusal,
        Refusal::Usage(
            "--signals-to-handle: signal 'SIGFOO' does not exist; use the names from `kill -l` \
             with the prefix SIG"
                .to_owned()
        )
    );
}
