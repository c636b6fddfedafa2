use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::*;
use crate::RpcErrorKind;
use crate::message::{
    AdoptReferences, ForkReferences, LocalReference, deserialize_reference, serialize_reference,
};

/// Stands for a remote reference; only its name is sent.
#[derive(Debug, PartialEq)]
struct Reference(String);

impl Serialize for Reference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_reference(Arc::new(self.0.clone()), serializer)
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let adopted = deserialize_reference(deserializer)?;
        let name = adopted.downcast_ref::<String>();
        let name = name.ok_or_else(|| de::Error::custom("another kind of reference"))?;
        Ok(Self(name.clone()))
    }
}

/// Numbers the forks that it creates.
#[derive(Default)]
struct Forks(Vec<String>);

impl ForkReferences for Forks {
    fn fork(&mut self, local: &LocalReference) -> Result<Vec<u8>, RpcError> {
        let name = local.downcast_ref::<String>().unwrap();
        if name == "dead" {
            return Err(RpcError::new(RpcErrorKind::PeerLost, "its owner is lost"));
        }
        self.0.push(name.clone());
        Ok(format!("fork {} of {name}", self.0.len()).into_bytes())
    }
}

/// Remembers the forks that it adopted.
#[derive(Default)]
struct Adopts(Vec<std::sync::Weak<String>>);

impl AdoptReferences for Adopts {
    fn adopt(&mut self, fork: &[u8]) -> Result<LocalReference, RpcError> {
        let fork = Arc::new(String::from_utf8(fork.to_vec()).unwrap());
        self.0.push(Arc::downgrade(&fork));
        Ok(fork)
    }
}

fn reference(name: &str) -> Reference {
    Reference(name.to_owned())
}

fn forked<T: Serialize>(value: &T, forks: &mut Forks) -> Result<Payload, RpcError> {
    let callee = worker("callee");
    encode(
        value,
        &mut Outgoing::request(&callee).with_references(forks),
    )
}

fn adopted<T: DeserializeOwned>(payload: &Payload, adopts: &mut Adopts) -> Result<T, RpcError> {
    let (caller, backend) = (worker("caller"), CpuOnly::shared());
    let mut incoming = Incoming::new(&caller, &backend).with_references(adopts);
    decode(payload, &mut incoming)
}

#[test]
fn each_reference_becomes_a_fork_and_is_taken_in() {
    let mut forks = Forks::default();
    let payload = forked(
        &vec![reference("a"), reference("b"), reference("a")],
        &mut forks,
    )
    .unwrap();
    assert_eq!(forks.0, ["a", "b", "a"]);
    let mut adopts = Adopts::default();
    let arrived: Vec<Reference> = adopted(&payload, &mut adopts).unwrap();
    let names = ["fork 1 of a", "fork 2 of b", "fork 3 of a"];
    assert_eq!(arrived, names.map(reference));
}

#[test]
fn nothing_is_forked_for_a_message_that_fails() {
    struct Fails;
    impl Serialize for Fails {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("on purpose"))
        }
    }
    let mut forks = Forks::default();
    assert!(forked(&(reference("a"), Fails), &mut forks).is_err());
    assert!(forks.0.is_empty());
}

#[test]
fn a_fork_that_fails_is_the_error_of_the_message() {
    let error = forked(&reference("dead"), &mut Forks::default()).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::PeerLost);
}

#[test]
fn what_was_taken_in_is_given_back_if_the_value_is_wrong() {
    let payload = forked(&(reference("a"), 7_u8), &mut Forks::default()).unwrap();
    let mut adopts = Adopts::default();
    let result = adopted::<(Reference, bool)>(&payload, &mut adopts);
    assert_eq!(result.unwrap_err().kind, RpcErrorKind::Serialization);
    assert_eq!(adopts.0.len(), 1);
    assert!(adopts.0[0].upgrade().is_none());
}

#[test]
fn references_are_refused_where_nobody_deals_with_them() {
    let error = encoded(&reference("a")).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Serialization);
    assert!(error.message.ends_with("which this message cannot contain"));
    let payload = forked(&reference("a"), &mut Forks::default()).unwrap();
    let error = decoded::<Reference>(&payload).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Serialization);
    let error = serde_json::to_string(&reference("a")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("rref can only be pickled when using RPC")
    );
}
