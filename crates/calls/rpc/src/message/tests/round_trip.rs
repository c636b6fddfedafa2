use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::*;
use crate::RpcErrorKind;
use crate::message::BODY_LIMIT;
use crate::tensor::{DataType, Tensor};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle(f64),
    Line(i64, i128),
    Named { name: String, letter: char },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Everything {
    flag: bool,
    small: (u8, i8, u16, i16, u32, i32),
    large: (u64, i64, u128, i128),
    real: (f32, f64),
    text: String,
    maybe: Option<Box<Everything>>,
    list: Vec<u32>,
    bytes: Vec<u8>,
    map: BTreeMap<String, Vec<i16>>,
    shapes: Vec<Shape>,
    nothing: (),
    empty: Vec<()>,
}

fn any_shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Point),
        (-1e300..1e300).prop_map(Shape::Circle),
        any::<(i64, i128)>().prop_map(|(from, to)| Shape::Line(from, to)),
        (".*", any::<char>()).prop_map(|(name, letter)| Shape::Named { name, letter }),
    ]
}

fn any_value() -> impl Strategy<Value = Everything> {
    let small = any::<(u8, i8, u16, i16, u32, i32)>();
    let large = any::<(u64, i64, u128, i128)>();
    let real = (-1e30_f32..1e30, -1e300..1e300);
    let lists = (
        prop::collection::vec(any::<u32>(), 0..300),
        any::<Vec<u8>>(),
        prop::collection::btree_map(".{0,8}", any::<Vec<i16>>(), 0..4),
        prop::collection::vec(any_shape(), 0..4),
        0..300_usize,
    );
    let flat = (any::<bool>(), small, large, real, ".*", lists).prop_map(
        |(flag, small, large, real, text, (list, bytes, map, shapes, empty))| Everything {
            flag,
            small,
            large,
            real,
            text,
            maybe: None,
            list,
            bytes,
            map,
            shapes,
            nothing: (),
            empty: vec![(); empty],
        },
    );
    let flat = flat.boxed();
    (flat.clone(), prop::option::of(flat)).prop_map(|(mut outer, inner)| {
        outer.maybe = inner.map(Box::new);
        outer
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn values_arrive_as_they_were_and_are_postcard(value in any_value()) {
        let payload = encoded(&value).unwrap();
        prop_assert_eq!(&payload.body[4..], &postcard::to_stdvec(&value).unwrap()[..]);
        prop_assert_eq!(decoded::<Everything>(&payload).unwrap(), value);
    }

    #[test]
    fn tensors_arrive_with_their_numbers(
        rows in 0..6_usize,
        columns in 0..6_usize,
        cut in (0..6_usize, 0..6_usize, 0..6_usize, 0..6_usize),
        turned in any::<bool>(),
    ) {
        let numbers: Vec<i32> = (0..(rows * columns) as i32).collect();
        let matrix = Tensor::from_vec(numbers, [rows, columns]).unwrap();
        let range = |from: usize, to: usize, size: usize| from.min(to).min(size)..from.max(to).min(size);
        let mut view = matrix.slice(0, range(cut.0, cut.1, rows)).unwrap();
        view = view.slice(1, range(cut.2, cut.3, columns)).unwrap();
        if turned {
            view = view.transpose(0, 1).unwrap();
        }
        let payload = encoded(&view).unwrap();
        let sent: usize = payload.parts.iter().map(|part| part.len()).sum();
        prop_assert_eq!(sent, view.meta().byte_len());
        let arrived: Tensor = decoded(&payload).unwrap();
        prop_assert_eq!(arrived.shape(), view.shape());
        prop_assert_eq!(
            arrived.as_slice::<i32>().unwrap(),
            view.as_slice::<i32>().unwrap()
        );
    }
}

fn matrix() -> Tensor {
    Tensor::from_vec((0..64).collect::<Vec<i32>>(), [8, 8]).unwrap()
}

#[test]
fn tensors_are_sent_and_received_without_a_copy() {
    let numbers = vec![1.0_f32; 1 << 20];
    let address = numbers.as_ptr().addr();
    let tensor = Tensor::from_vec(numbers, [1 << 10, 1 << 10]).unwrap();
    let payload = encoded(&("before", &tensor, "after")).unwrap();
    assert_eq!(payload.parts[0].as_ptr().addr(), address);
    assert!(payload.body.len() < 64);

    let (_, arrived, _): (String, Tensor, String) = decoded(&payload).unwrap();
    let numbers = arrived.as_slice::<f32>().unwrap();
    assert_eq!(numbers.as_ptr().addr(), address);
}

#[test]
fn views_that_overlap_still_do_when_they_arrive() {
    let matrix = matrix();
    let sent = (
        matrix.clone(),
        matrix.select(1, 3).unwrap(),
        vec![matrix.transpose(0, 1).unwrap()],
    );
    let payload = encoded(&sent).unwrap();
    assert_eq!(payload.parts.len(), 1);
    let (whole, column, turned): (Tensor, Tensor, Vec<Tensor>) = decoded(&payload).unwrap();
    assert!(whole.storage().is(column.storage()) && whole.storage().is(turned[0].storage()));
    assert_eq!(
        column.as_slice::<i32>().unwrap()[..],
        [3, 11, 19, 27, 35, 43, 51, 59]
    );
    assert_eq!(turned[0].as_slice::<i32>().unwrap()[..3], [0, 8, 16]);
}

#[test]
fn a_view_keeps_its_strides_if_its_bytes_have_no_gaps_and_else_loses_the_gaps() {
    let arrived = |view: Tensor| there_and_back(&view).meta().strides().to_vec();
    let matrix = matrix();
    assert_eq!(arrived(matrix.transpose(0, 1).unwrap()), [1, 8]);
    assert_eq!(arrived(matrix.slice(0, 2..5).unwrap()), [8, 1]);
    // Columns: three of eight numbers of each row are sent.
    let columns = matrix.slice(1, 2..5).unwrap();
    assert_eq!(columns.meta().strides(), [8, 1]);
    assert_eq!(arrived(columns.clone()), [3, 1]);
    // The transposed columns keep their order in memory.
    assert_eq!(arrived(columns.transpose(0, 1).unwrap()), [1, 3]);
    // In a message with a view of the whole matrix, the columns keep their strides.
    let (_, beside): (Tensor, Tensor) = there_and_back(&(matrix, columns));
    assert_eq!(beside.meta().strides(), [8, 1]);
}

#[test]
fn other_storages_with_equal_bytes_stay_apart() {
    let (one, other) = (matrix(), matrix());
    let (one, other): (Tensor, Tensor) = there_and_back(&(one, other));
    assert!(!one.storage().is(other.storage()));
}

#[test]
fn nothing_outside_of_a_view_is_sent() {
    let mut bytes = vec![0x5e_u8; 4096];
    bytes[1000..1010].fill(7);
    let secret = Tensor::from_bytes(DataType::U8, [4096], bytes).unwrap();
    let payload = encoded(&secret.slice(0, 1000..1010).unwrap()).unwrap();
    assert_eq!(payload.parts, [vec![7_u8; 10]]);
    let square = secret.reshape([64, 64]).unwrap();
    let corner = square.slice(0, 0..2).unwrap().slice(1, 0..2).unwrap();
    assert_eq!(encoded(&corner).unwrap().parts[0].len(), 4);
}

#[test]
fn numbers_and_empty_tensors_travel() {
    let number = Tensor::from_vec(vec![2.5_f64], []).unwrap();
    let empty = Tensor::from_bytes(DataType::Bf16, [3, 0, 2], vec![]).unwrap();
    let payload = encoded(&vec![&number, &empty]).unwrap();
    assert_eq!(payload.parts.len(), 1);
    let arrived: Vec<Tensor> = decoded(&payload).unwrap();
    assert_eq!(arrived[0].as_slice::<f64>().unwrap()[..], [2.5]);
    assert_eq!(arrived[0].shape().len(), 0);
    assert_eq!(arrived[1].shape(), [3, 0, 2]);
    assert_eq!(arrived[1].data_type(), DataType::Bf16);
    assert_eq!(arrived[1].to_bytes().unwrap().len(), 0);
}

#[test]
fn a_tensor_is_refused_elsewhere_and_says_why() {
    let error = serde_json::to_string(&matrix()).unwrap_err().to_string();
    assert!(error.starts_with("a tensor can only be serialised within an RPC message"));
    let error = serde_json::from_str::<Tensor>("0").unwrap_err().to_string();
    assert!(error.starts_with("a tensor can only be deserialised from an RPC message"));
    // The slot is empty after the message is done.
    encoded(&matrix()).unwrap();
    assert!(serde_json::to_string(&matrix()).is_err());
}

/// Encodes another message while it is serialised.
struct Nested;

impl Serialize for Nested {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let inner = encoded(&vec![matrix(), matrix()]).unwrap();
        assert_eq!(inner.parts.len(), 2);
        matrix().serialize(serializer)
    }
}

#[test]
fn a_message_within_a_message_is_its_own() {
    let payload = encoded(&(matrix(), Nested)).unwrap();
    assert_eq!(payload.parts.len(), 2);
    let (first, second): (Tensor, Tensor) = decoded(&payload).unwrap();
    assert_eq!(first.shape(), second.shape());
}

#[test]
fn a_panic_while_serialising_leaves_no_slot_behind() {
    struct Panics;
    impl Serialize for Panics {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("on purpose")
        }
    }
    assert!(std::panic::catch_unwind(|| encoded(&Panics)).is_err());
    assert!(serde_json::to_string(&matrix()).is_err());
}

#[test]
fn a_body_over_the_limit_is_refused_and_tensors_are_suggested() {
    let error = encoded(&"x".repeat(BODY_LIMIT)).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Serialization);
    assert!(
        error.message.ends_with("send large data as a tensor"),
        "{error}"
    );
    assert!(encoded(&vec![1_u8; 1000]).is_ok());
}

#[test]
fn too_many_separate_tensors_are_refused() {
    let tensor = || Tensor::from_vec(vec![1_u8], [1]).unwrap();
    let error = encoded(&(0..65536).map(|_| tensor()).collect::<Vec<_>>()).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Serialization);
    assert!(
        error.message.contains("in 65536 separate blocks"),
        "{error}"
    );
}

#[test]
fn a_tensor_seen_as_large_is_sent_as_small_as_it_is() {
    let number = Tensor::from_vec(vec![1.0_f32], [1]).unwrap();
    let meta = crate::tensor::TensorMeta::new(DataType::F32, vec![1 << 28], vec![0], 0).unwrap();
    let wide = Tensor::new(number.storage().clone(), meta).unwrap();
    let payload = encoded(&wide).unwrap();
    assert_eq!(payload.parts[0].len(), 4);
    assert_eq!(decoded::<Tensor>(&payload).unwrap().shape(), [1 << 28]);
}
