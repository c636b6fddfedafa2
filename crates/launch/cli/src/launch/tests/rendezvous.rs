//! Tests of the rendezvous that a line chooses.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_agent::config::RendezvousPlan;
use rdzv_core::endpoint::Endpoint;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::{Program, RendezvousParameters};

use super::{case, warnings};

#[test]
fn a_single_node_needs_no_rendezvous_and_keeps_a_run_id_that_was_given() {
    let launch = case(&["s.py"]).launch();
    assert_eq!(launch.plan.rendezvous.plan, RendezvousPlan::Local);
    assert_eq!(launch.plan.identity.run_id.as_str(), "a-random-id");
    for line in [
        &["--rdzv-id", "mine", "s.py"][..],
        &["--standalone", "--rdzv-id", "mine", "s.py"],
        &[
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "localhost:0",
            "--rdzv-id=mine",
            "s.py",
        ],
    ] {
        let launch = case(line).launch();
        assert_eq!(launch.plan.rendezvous.plan, RendezvousPlan::Local);
        assert_eq!(launch.plan.identity.run_id.as_str(), "mine");
    }
}

#[test]
fn an_address_makes_the_rendezvous_static() {
    let at = |host: &str, port| Endpoint {
        host: host.to_owned(),
        port,
    };
    for (line, endpoint, node_rank, nodes) in [
        (&["--master-port", "7"][..], at("127.0.0.1", 7), 0, 1),
        (&["--rdzv-endpoint", "h:8"], at("h", 8), 0, 1),
        (
            &[
                "--nnodes",
                "1:2",
                "--node-rank",
                "1",
                "--master-addr",
                "[::1]",
            ],
            at("::1", 29500),
            1,
            2,
        ),
    ] {
        let launch = case(&[line, &["s.py"]].concat()).launch();
        assert_eq!(
            launch.plan.rendezvous.plan,
            RendezvousPlan::Static {
                endpoint,
                node_rank: GroupRank(node_rank),
                nodes,
                timeout: Duration::from_secs(900),
            }
        );
        assert_eq!(launch.plan.identity.run_id.as_str(), "none");
    }
}

#[test]
fn an_elastic_range_without_a_dynamic_backend_is_warned_about() {
    let launch = case(&["--nnodes", "1:2", "s.py"]).launch();
    let [warning] = warnings(&launch)[..] else {
        panic!("{:?}", launch.notes)
    };
    assert!(warning.contains("exactly 2 nodes"), "{warning}");
}

#[test]
fn flags_without_effect_are_warned_about() {
    let launch = case(&["--rdzv-backend", "c10d", "--node-rank", "1", "s.py"]).launch();
    assert_eq!(
        warnings(&launch),
        [
            "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not \
             specified.",
            "node_rank is only used for static rdzv_backend. It will be ignored for \
             rdzv_backend=c10d."
        ]
    );
}

#[test]
fn a_job_without_a_token_says_so_where_others_can_reach_it() {
    let said = |line: &[&'static str]| {
        let launch = case(&[line, &["s.py"]].concat()).launch();
        let warnings = warnings(&launch);
        let lines = warnings
            .iter()
            .filter(|text| text.contains("this job has no token"));
        lines.count()
    };
    for reachable in [
        &["--master-addr=10.0.0.7", "--master-port=1"][..],
        &["--rdzv-backend=c10d", "--rdzv-endpoint=node0"],
        &[
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost",
            "--local-addr=node0",
        ],
        &["--local-addr=10.0.0.7"],
    ] {
        assert_eq!(said(reachable), 1, "{reachable:?}");
    }
    for private in [
        &[][..],
        &["--standalone"],
        &["--master-addr=127.0.0.1", "--master-port=1"],
        &["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400"],
    ] {
        assert_eq!(said(private), 0, "{private:?}");
    }
}

/// Returns the parameters of a dynamic rendezvous.
fn dynamic(line: &[&'static str]) -> RendezvousParameters {
    let launch = case(&[line, &["s.py"]].concat()).launch();
    match launch.plan.rendezvous.plan {
        RendezvousPlan::Dynamic { parameters } => parameters,
        other => panic!("{line:?} means {other:?}"),
    }
}

#[test]
fn several_nodes_or_an_endpoint_make_c10d_dynamic() {
    let parameters = dynamic(&[
        "--rdzv-backend=c10d",
        "--nnodes=1:3",
        "--rdzv-id=job",
        "--rdzv-endpoint=h:7",
        "--rdzv-conf=join_timeout=4,is_host=1",
        "--local-addr=10.0.0.1",
    ]);
    let options = [("is_host", "1"), ("join_timeout", "4")];
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let mut expected =
        RendezvousParameters::new("c10d", "h:7", "job", 1, 3, BTreeMap::from(options)).unwrap();
    expected.local_addr = Some("10.0.0.1".to_owned());
    expected.program = Some(Program::new("s.py", b"s.py", true));
    expected.sorts_ranks = true;
    assert_eq!(parameters, expected);
    let one_node = dynamic(&["--rdzv-backend=c10d", "--rdzv-endpoint=h"]);
    assert_eq!((one_node.run_id.as_str(), one_node.max_nodes), ("none", 1));
    let file = dynamic(&[
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=/shared/a:b",
        "--rdzv-conf=store_type=file",
    ]);
    assert_eq!(file.endpoint, "/shared/a:b");
}

#[test]
fn standalone_with_several_nodes_waits_where_nobody_comes() {
    let parameters = dynamic(&["--standalone", "--nnodes=2", "--rdzv-conf=join_timeout=4"]);
    assert_eq!(
        (
            &*parameters.backend,
            &*parameters.endpoint,
            &*parameters.run_id
        ),
        ("c10d", "localhost:0", "a-random-id")
    );
    assert_eq!(parameters.config.get("join_timeout"), Some("4"));
}
