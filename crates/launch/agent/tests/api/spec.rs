//! Tests of specifications: defaults and errors.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use rdzv_agent::api::{
    Defaults, ElasticAgent, LaunchConfig, LocalElasticAgent, WorkerEntrypoint, WorkerSpec,
    WorkerSpecBuilder, WorkerState,
};
use rdzv_agent::config::{MasterPort, RendezvousPlan};
use rdzv_core::endpoint::Endpoint;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::{RendezvousConfig, RendezvousParameters};

fn plain() -> WorkerSpecBuilder {
    WorkerSpec::builder(WorkerEntrypoint::command("true"))
}

#[test]
fn a_spec_begins_with_the_defaults_of_the_library() {
    let spec = plain().build().unwrap();
    assert_eq!((spec.role(), spec.local_world_size()), ("default", 1));
    assert_eq!(spec.config().restarts.max_restarts, 3);
    assert_eq!(spec.monitor_interval(), Duration::from_millis(100));
    assert_eq!(spec.config().restarts.settle_delay, Duration::ZERO);
    assert!(spec.config().restarts.non_retryable.is_empty());
}

#[test]
fn the_other_defaults_are_a_word_away() {
    let first = plain().defaults(Defaults::FIRST_TORCHELASTIC);
    let first = first.build().unwrap();
    assert_eq!(first.config().restarts.max_restarts, 100);
    assert_eq!(first.monitor_interval(), Duration::from_secs(5));
    let command_line = plain().defaults(Defaults::COMMAND_LINE).build().unwrap();
    assert_eq!(command_line.config().restarts.max_restarts, 0);
}

#[test]
fn a_launch_configuration_has_its_own_defaults() {
    let config = LaunchConfig::new(1, 2);
    let spec = config.spec(WorkerEntrypoint::command("true")).unwrap();
    assert_eq!(spec.role(), "default_role");
    assert_eq!(spec.config().restarts.max_restarts, 3);
    assert_eq!(
        spec.config().rendezvous.plan,
        RendezvousPlan::Local,
        "no etcd is asked"
    );
    let run_id: u128 = spec.config().identity.run_id.as_str().parse().unwrap();
    assert_eq!(run_id >> 76 & 0xf, 4, "the number of a random UUID");
    let other = config.spec(WorkerEntrypoint::command("true")).unwrap();
    assert_ne!(
        other.config().identity.run_id,
        spec.config().identity.run_id
    );
}

#[test]
fn what_cannot_work_is_refused_with_a_reason() {
    let elsewhere = RendezvousPlan::Static {
        endpoint: Endpoint::parse("127.0.0.1:1", 1).unwrap(),
        node_rank: GroupRank(2),
        nodes: 2,
        timeout: Duration::from_secs(1),
    };
    let backend = |name: &str, run_id: &str| {
        let parameters =
            RendezvousParameters::new(name, "h:1", run_id, 1, 1, RendezvousConfig::default())
                .unwrap();
        RendezvousPlan::Dynamic { parameters }
    };
    let kept = MasterPort::Kept(Arc::new(TcpListener::bind("127.0.0.1:0").unwrap()));
    let cases: [(WorkerSpecBuilder, &str); 10] = [
        (plain().local_world_size(0), "local_world_size is 0"),
        (plain().monitor_interval(Duration::ZERO), "monitor_interval"),
        (plain().role(""), "role is empty"),
        (
            plain().event_log_handler("zeus"),
            "console, dynamic_rendezvous, null",
        ),
        (plain().non_retryable(0), "exit code 0 means success"),
        (plain().rendezvous(elsewhere), "the node rank is 2"),
        (plain().rendezvous(backend("zeus", "none")), "'zeus'"),
        (plain().rendezvous(backend("c10d", "a")), "run 'a'"),
        (
            plain().master_port(kept).share_store(false),
            "the worker with rank 0 hosts the store",
        ),
        (
            WorkerSpec::builder(WorkerEntrypoint::module("")),
            "entry point is empty",
        ),
    ];
    for (builder, reason) in cases {
        let refused = builder.build().unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
    plain().max_restarts(0).build().unwrap();
}

#[test]
fn an_agent_has_one_role_and_a_group_from_the_beginning() {
    let spec = plain().role("trainer").local_world_size(2);
    let mut agent = LocalElasticAgent::new(spec.build().unwrap());
    let group = agent.worker_group("trainer").unwrap();
    assert_eq!(group.state, WorkerState::Init);
    assert_eq!(group.workers.len(), 2);
    assert_eq!(group.workers[1].global_rank_or_unset(), -1);
    assert_eq!(
        (group.group_rank_or_unset(), group.master_port()),
        (-1, None)
    );
    assert!(agent.worker_group("reader").is_none());
    let refused = agent.run("reader").unwrap_err().to_string();
    assert_eq!(
        refused,
        "this agent has workers of role 'trainer', none of role 'reader'"
    );
}

#[test]
fn states_have_torchelastics_names_and_numbers() {
    let states = [
        (WorkerState::Unknown, "UNKNOWN", 0, false),
        (WorkerState::Init, "INIT", 1, false),
        (WorkerState::Healthy, "HEALTHY", 2, true),
        (WorkerState::Unhealthy, "UNHEALTHY", 4, true),
        (WorkerState::Stopped, "STOPPED", 8, false),
        (WorkerState::Succeeded, "SUCCEEDED", 16, false),
        (WorkerState::Failed, "FAILED", 32, false),
    ];
    for (state, name, number, running) in states {
        assert_eq!(
            (state.name(), state.number(), state.is_running()),
            (name, number, running)
        );
    }
}
