//! Backend `etcd-v2`, and agents of torchrun that use etcd's v2 API.

use rdzv_core::ident::RunId;
use rdzv_rendezvous::RendezvousError;

use crate::server::Server;
use crate::{new_run, support};

/// Joins a run as its only node.
fn join(server: &Server, run: &RunId) -> Result<(), RendezvousError> {
    let endpoint = server.endpoint().to_string();
    let config = "last_call_timeout=1";
    let mut node = support::node("etcd-v2", &endpoint, run.as_str(), (1, 1), config);
    assert_eq!(node.name(), "etcd-v2");
    node.join(&support::member()).map(drop)
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_run_of_torchrun_is_refused_before_anything_is_written() {
    let server = Server::with_v2();
    let run = new_run();
    let key = format!("torch/elastic/rendezvous/{run}");
    let url = format!("http://{}/v2/keys/{key}", server.endpoint());
    ureq::put(url.replace(' ', "%20"))
        .send_form([("value", "gASVCwAAAAAAAAA=")])
        .unwrap();
    let error = join(&server, &run).unwrap_err();
    assert!(matches!(error, RendezvousError::Argument(_)), "{error:?}");
    let error = error.to_string();
    for part in [
        format!("run '{run}'"),
        format!("key '/{key}'"),
        format!("the etcd endpoint {}", server.endpoint()),
        "use another --rdzv-id".to_owned(),
    ] {
        assert!(error.contains(&part), "{part}: {error}");
    }
    let url = format!("http://{}/v3/kv/range", server.endpoint());
    let everything = r#"{"key": "AA==", "range_end": "AA==", "count_only": true}"#;
    let mut found = ureq::post(url).send(everything).unwrap();
    let found = found.body_mut().read_to_string().unwrap();
    assert!(!found.contains("count"), "{found}");

    join(&server, &new_run()).unwrap();
}

#[test]
#[ignore = "needs etcd: cargo xtask test"]
fn a_server_without_the_v2_api_has_no_run_of_torchrun() {
    join(&Server::start(), &new_run()).unwrap();
}
