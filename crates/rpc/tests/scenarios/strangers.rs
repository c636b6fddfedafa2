//! Processes of another job (SCN-S32).

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rdzv_rpc::RpcErrorKind;
use serde_json::{Value, json};

use super::worker::Scenario;

/// The worker `a` with these options and `b` with those: they form a group, and what `a` gets if it
/// calls `b`.
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
            (&one, &other, "another job token"),
            (&one, &none, "has a job token and"),
            (&none, &one, "has a job token and"),
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
    let folder = tempfile::TempDir::new().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| Authority::new(folder.path(), name));
    let a = ours.worker("a");
    assert_eq!(called(&a, &ours.worker("b")), Ok(json!(8)));
    for stranger in [theirs.worker("b"), ours.worker("c")] {
        let error = called(&a, &stranger).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::Protocol, "{error:?}");
    }
}

/// Who signs certificates, and where they are put.
struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(folder: &Path, name: &str) -> Self {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap();
        std::fs::write(folder.join("authority.pem"), own.pem()).unwrap();
        let issuer = Issuer::new(params, key);
        Self { folder, issuer }
    }

    /// The options of a worker with this name in its certificate.
    fn worker(&self, name: &str) -> Value {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let [certificate_file, key_file] =
            ["pem", "key"].map(|kind| self.folder.join(format!("{name}.{kind}")));
        std::fs::write(&certificate_file, certificate.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        let authorities = self.folder.join("authority.pem");
        let files = json!({
            "certificate": certificate_file, "key": key_file, "authorities": authorities,
        });
        json!({ "transports": ["tcp"], "tls": files })
    }
}
