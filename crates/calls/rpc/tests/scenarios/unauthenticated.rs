//! Tests of processes of another job (SCN-S32).

use rdzv_rpc::RpcErrorKind;
use rdzv_testing::TestAuthority;
use serde_json::{Value, json};

use super::worker::Scenario;

/// Forms a group of `a` and `b`, each with its own options.
/// Returns the answer that `a` gets when it calls `b`.
fn called(ours: &Value, theirs: &Value) -> Result<Value, super::worker::Failure> {
    let scenario = Scenario::new();
    let [a, b] = scenario.started(["a", "b"]);
    for (worker, options) in [(&a, ours), (&b, theirs)] {
        worker.begin_init(&json!({ "world_size": 2, "options": options }));
    }
    a.succeeds();
    b.succeeds();
    let answer = a.calls("b", "double", json!(4));
    let served = if answer.is_ok() { 1 } else { 0 };
    assert_eq!(b.does(&json!({ "do": "traffic" }))["served"], served);
    answer
}

#[test]
fn a_process_with_another_token_or_none_is_refused_on_every_transport() {
    for transports in [["shm"], ["unix"], ["tcp"]] {
        let with = |token: Option<&str>| json!({ "transports": transports, "token": token });
        let [one, other] = ["the token of one job", "the token of another"]
            .map(Some)
            .map(with);
        let none = with(None);
        for (ours, theirs, said) in [
            (&one, &other, "different job tokens"),
            (&one, &none, "has a job token, but"),
            (&none, &one, "has a job token, but"),
        ] {
            let error = called(ours, theirs).unwrap_err();
            assert_eq!(error.kind, RpcErrorKind::Protocol, "{error:?}");
            assert!(error.message.contains(said), "{error:?}");
        }
        assert_eq!(called(&one, &one), Ok(json!(8)));
    }
}

#[test]
fn a_process_with_a_certificate_of_another_authority_or_name_is_refused() {
    let [ours, theirs] = [TestAuthority::new(), TestAuthority::new()];
    let a = with_certificate(&ours, "a");
    assert_eq!(called(&a, &with_certificate(&ours, "b")), Ok(json!(8)));
    for other in [with_certificate(&theirs, "b"), with_certificate(&ours, "c")] {
        let error = called(&a, &other).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::Protocol, "{error:?}");
    }
}

/// Returns the options of a worker with this name in its certificate.
fn with_certificate(authority: &TestAuthority, name: &str) -> Value {
    let (certificate, key) = authority.files(name);
    let files = json!({
        "certificate": certificate, "key": key, "authorities": authority.file(),
    });
    json!({ "transports": ["tcp"], "tls": files })
}
