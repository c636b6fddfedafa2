use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::*;
use crate::RpcErrorKind;
use crate::message::reader::{DEPTH_LIMIT, EMPTY_LIMIT};
use crate::message::table::{Entry, LoanPart, Table};
use crate::tensor::{DataType, Device, Tensor, TensorMeta};

#[derive(Debug, Serialize, Deserialize)]
enum Tree {
    Leaf,
    Branch(Box<Tree>),
    Many(Vec<Tree>),
}

type Anything = (
    Option<Vec<String>>,
    BTreeMap<u16, (i64, f32)>,
    Vec<Tensor>,
    Tree,
    Option<char>,
    Vec<Vec<()>>,
);

fn refusal<T: DeserializeOwned>(payload: &Payload) -> String {
    let Err(error) = decoded::<T>(payload) else {
        panic!("this should be refused: {payload:?}");
    };
    assert_eq!(error.kind, RpcErrorKind::Serialization);
    assert_eq!(error.worker, Some(worker("caller")));
    error.message
}

/// Creates a body with these bytes as its value, without a table.
fn value(bytes: &[u8]) -> Payload {
    Payload {
        body: [&[0; 4], bytes].concat().into(),
        parts: Vec::new(),
    }
}

/// Creates a message with one tensor as its value and this table.
fn with_table(entries: Vec<Entry>, parts: &[usize]) -> Payload {
    with_loans(entries, parts, Vec::new())
}

fn with_loans(entries: Vec<Entry>, parts: &[usize], loans: Vec<LoanPart>) -> Payload {
    let table = Table {
        tensors: entries,
        references: Vec::new(),
        loans,
    };
    let table = postcard::to_stdvec(&table).unwrap();
    let len = u32::try_from(table.len()).unwrap().to_le_bytes();
    Payload {
        body: [&len[..], &[0], &table].concat().into(),
        parts: parts.iter().map(|len| vec![0; *len].into()).collect(),
    }
}

fn entry(part: u32, shape: &[usize], offset: usize) -> Entry {
    let meta = TensorMeta::contiguous(DataType::F32, shape.to_vec()).unwrap();
    Entry {
        part,
        device: Device::CPU,
        meta: meta.at(offset).unwrap(),
    }
}

#[test]
fn a_body_that_is_cut_or_too_long_is_refused() {
    let text = refusal::<u32>(&Payload::default());
    assert_eq!(
        text,
        "the message is not a valid u32: its body has only 0 of 4 bytes"
    );
    assert!(refusal::<u32>(&value(&[])).ends_with("it is truncated after 0 bytes"));
    assert!(refusal::<u32>(&value(&[1, 2, 3])).ends_with("2 bytes follow the value"));
    let long_table = Payload {
        body: Bytes::from_static(&[255, 255, 255, 255, 0]),
        parts: Vec::new(),
    };
    assert!(
        refusal::<u8>(&long_table)
            .ends_with("its table of 4294967295 bytes exceeds the 1 bytes of the body")
    );
}

#[test]
fn values_of_another_type_are_refused() {
    assert!(refusal::<bool>(&value(&[2])).ends_with("byte 0 is 2, which is neither 0 nor 1"));
    assert!(refusal::<u16>(&value(&[0xff, 0xff, 0x04])).ends_with("too large for its type"));
    assert!(refusal::<u64>(&value(&[0xff; 11])).ends_with("too large for its type"));
    assert!(refusal::<String>(&value(&[2, 0xc3, 0x28])).contains("not UTF-8"));
    assert!(refusal::<char>(&value(&[2, b'a', b'b'])).contains("single letter"));
    assert!(refusal::<Option<u8>>(&value(&[7])).contains("neither 0 nor 1"));
    assert!(refusal::<Tree>(&value(&[3])).contains("integer `3`"));
    assert!(refusal::<serde_json::Value>(&value(&[1])).contains("needs a self-describing format"));
}

#[test]
fn lists_longer_than_their_bytes_are_refused_at_once() {
    let endless = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let text = refusal::<Vec<u64>>(&value(&endless));
    assert!(text.ends_with("a length is 18446744073709551615, but only 0 bytes are left"));
    assert!(refusal::<String>(&value(&endless)).contains("only 0 bytes are left"));
    assert!(refusal::<Vec<()>>(&value(&endless)).contains("only 0 bytes are left"));
    // Many lists of many empty values.
    let nothings = postcard::to_stdvec(&vec![vec![(); 1000]; 2000]).unwrap();
    assert!(refusal::<Vec<Vec<()>>>(&value(&nothings)).contains("elements of zero bytes"));
    let some = vec![(); EMPTY_LIMIT as usize];
    assert_eq!(there_and_back(&some), some);
}

#[test]
fn values_nested_without_end_are_refused_before_the_stack_ends() {
    let text = refusal::<Tree>(&value(&[1; 1 << 20]));
    assert!(
        text.ends_with("it is nested more than 256 levels deep"),
        "{text}"
    );
    let lists = [2, 1].repeat(1 << 20);
    assert!(refusal::<Tree>(&value(&lists)).contains("256 levels deep"));

    let mut bytes = vec![1; usize::from(DEPTH_LIMIT) - 1];
    bytes.push(0);
    assert!(decoded::<Tree>(&value(&bytes)).is_ok());
    bytes.insert(0, 1);
    assert!(decoded::<Tree>(&value(&bytes)).is_err());
}

#[test]
fn tensors_outside_of_their_parts_are_refused() {
    let text = |entries: Vec<Entry>, parts: &[usize]| {
        let text = refusal::<Tensor>(&with_table(entries, parts));
        text.split_once(": ").unwrap().1.to_owned()
    };
    assert_eq!(
        text(vec![entry(2, &[1], 0)], &[4]),
        "tensor 0 is in part 1 of 1"
    );
    assert_eq!(
        text(vec![entry(u32::MAX, &[1], 0)], &[]),
        "tensor 0 is in part 4294967294 of 0"
    );
    assert_eq!(
        text(vec![entry(1, &[2], 0)], &[7]),
        "tensor 0 in part 0: the view covers bytes 0 to 8 of a storage of 7 bytes"
    );
    assert_eq!(
        text(vec![entry(1, &[1], 0), entry(1, &[1], 2)], &[4]),
        "tensor 1 in part 0: the view covers bytes 2 to 6 of a storage of 4 bytes"
    );
    assert_eq!(
        text(vec![entry(0, &[1], 0)], &[]),
        "tensor 0 has elements but no part"
    );
    assert_eq!(
        text(vec![entry(2, &[1], 0)], &[4, 4]),
        "no tensor is in part 0"
    );
    assert!(decoded::<Tensor>(&with_table(vec![entry(1, &[1], 0)], &[4])).is_ok());
}

#[test]
fn parts_that_no_tensor_needs_are_refused() {
    let mut payload = encoded(&5).unwrap();
    payload.parts.push(Bytes::from_static(b"abc"));
    assert!(refusal::<i32>(&payload).ends_with("no tensor is in part 0"));
}

#[test]
fn a_tensor_that_the_message_has_not_is_refused() {
    assert_eq!(
        refusal::<Tensor>(&value(&[3])).split_once(": ").unwrap().1,
        "the value refers to tensor 3, but the message has 0"
    );
}

#[test]
fn tables_that_no_memory_could_hold_are_refused() {
    // part 1, device "cpu", then a meta: F64, offset 0, shape [2^62, 4], contiguous.
    let mut table = vec![1, 1, 3];
    table.extend(b"cpu");
    table.extend([1, 0, 2]);
    table.extend(postcard::to_stdvec(&(1_u64 << 62)).unwrap());
    table.extend([4, 0, 0]);
    let len = u32::try_from(table.len()).unwrap().to_le_bytes();
    let payload = Payload {
        body: [&len[..], &[0], &table].concat().into(),
        parts: vec![Bytes::from_static(&[0; 8])],
    };
    assert!(refusal::<Tensor>(&payload).contains("exceeds the address space"));
}

fn real_message() -> Payload {
    let tensor = Tensor::from_vec((0..64).collect::<Vec<i32>>(), [8, 8]).unwrap();
    let column = tensor.slice(1, 2..4).unwrap();
    let sent = (
        Some(vec!["one", "zwei"]),
        BTreeMap::from([(3_u16, (-7_i64, 0.5_f32))]),
        vec![column, Tensor::from_vec(vec![1.0_f64], []).unwrap()],
        Tree::Many(vec![Tree::Leaf, Tree::Branch(Box::new(Tree::Leaf))]),
        Some('ü'),
        vec![vec![(); 3]; 2],
    );
    encoded(&sent).unwrap()
}

#[test]
fn every_cut_of_a_message_is_refused() {
    let real = real_message();
    assert!(decoded::<Anything>(&real).is_ok());
    for len in 0..real.body.len() {
        let cut = Payload {
            body: real.body.slice(..len),
            parts: real.parts.clone(),
        };
        refusal::<Anything>(&cut);
    }
    for part in 0..real.parts.len() {
        let mut short = real.clone();
        let len = short.parts[part].len();
        short.parts[part].truncate(len - 1);
        refusal::<Anything>(&short);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_are_decoded_or_refused(
        body in prop::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 0..200),
        parts in prop::collection::vec(0..40_usize, 0..3),
    ) {
        let payload = Payload {
            body: body.into(),
            parts: parts.into_iter().map(|len| vec![1; len].into()).collect(),
        };
        if let Err(error) = decoded::<Anything>(&payload) {
            prop_assert_eq!(error.kind, RpcErrorKind::Serialization);
        }
    }

    #[test]
    fn changed_messages_are_decoded_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let real = real_message();
        let mut body = real.body.to_vec();
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let payload = Payload { body: body.into(), parts: real.parts };
        match decoded::<Anything>(&payload) {
            // The tensors that arrive can be read within their parts.
            Ok((_, _, tensors, ..)) => {
                for tensor in tensors.iter().filter(|tensor| tensor.meta().byte_len() < 1 << 20) {
                    prop_assert_eq!(tensor.to_bytes().unwrap().len(), tensor.meta().byte_len());
                }
            }
            // An unknown device is an error of another kind.
            Err(error) => prop_assert!(matches!(
                error.kind,
                RpcErrorKind::Serialization | RpcErrorKind::InvalidArgument
            )),
        }
    }
}

#[test]
fn loans_that_this_worker_cannot_use_are_refused() {
    let loan = |part, len| vec![LoanPart { part, len }];
    let refused = |loans| {
        let payload = with_loans(vec![entry(1, &[4], 0)], &[64], loans);
        decoded::<Tensor>(&payload).unwrap_err().message
    };
    let text = refused(loan(0, u64::MAX));
    assert!(text.contains("which this worker cannot use"), "{text}");
    let text = refused(loan(1, 8));
    assert!(
        text.contains("part 1 is lent, but there is no such part"),
        "{text}"
    );
    let text = refused(loan(0, 1));
    assert!(text.contains("tensor 0 in part 0"), "{text}");
}
