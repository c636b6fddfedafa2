//! Tests of the keyspace against a naive model of it.

use std::collections::{BTreeMap, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;
use rdzv_store_proto::keyspace::Keyspace;
use rdzv_store_proto::meter::Meter;
use rdzv_store_proto::number;
use rdzv_store_proto::wire::LARGE_BODY;
use rdzv_store_proto::wire::fields::Body;

#[derive(Debug, Clone)]
enum Step {
    Set(u8, usize, bool),
    SetText(u8, String),
    Append(u8, usize),
    Add(u8, i64),
    Remove(u8),
    Get(u8),
    Push(u8, usize),
    Pop(u8),
    Keep(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..5_u8;
    let length = || prop_oneof![5 => 0..100_usize, 1 => LARGE_BODY - 2..LARGE_BODY + 2];
    let step = prop_oneof![
        (key.clone(), length(), any::<bool>()).prop_map(|(k, l, own)| Step::Set(k, l, own)),
        (key.clone(), "[ +-]?[0-9]{0,20}x?").prop_map(|(k, text)| Step::SetText(k, text)),
        (key.clone(), length()).prop_map(|(k, l)| Step::Append(k, l)),
        (key.clone(), any::<i64>()).prop_map(|(k, n)| Step::Add(k, n)),
        key.clone().prop_map(Step::Remove),
        key.clone().prop_map(Step::Get),
        (key.clone(), length()).prop_map(|(k, l)| Step::Push(k, l)),
        key.clone().prop_map(Step::Pop),
        key.prop_map(Step::Keep),
    ];
    vec(step, 0..60)
}

#[derive(Default)]
struct Model {
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    queues: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
}

fn name(key: u8) -> Vec<u8> {
    vec![b'/', b'a' + key]
}

proptest! {
    #[test]
    fn the_keyspace_does_what_a_plain_map_does(steps in steps()) {
        let (meter, mut model) = (Meter::default(), Model::default());
        let mut keyspace = Keyspace::new(meter.clone());
        for step in steps {
            match step {
                Step::Set(key, length, own) => {
                    let value = vec![key; length];
                    model.map.insert(name(key), value.clone());
                    // Only a large body has its own buffer.
                    if own && length >= LARGE_BODY {
                        keyspace.set(&name(key), Body::Whole(meter.share(value)));
                    } else {
                        keyspace.set(&name(key), Body::Inline(&value));
                    }
                }
                Step::SetText(key, text) => {
                    keyspace.set(&name(key), Body::Inline(text.as_bytes()));
                    model.map.insert(name(key), text.into_bytes());
                }
                Step::Append(key, length) => {
                    let value = vec![b'+'; length];
                    keyspace.append(&name(key), Body::Inline(&value));
                    model.map.entry(name(key)).or_default().extend(value);
                }
                Step::Add(key, delta) => {
                    let held = model.map.get(&name(key));
                    let number = held.map_or(Some(0), |held| number::parse(held));
                    let sum = number.map(|number| number.wrapping_add(delta));
                    prop_assert_eq!(keyspace.add(&name(key), delta).ok(), sum);
                    if let Some(sum) = sum {
                        model.map.insert(name(key), sum.to_string().into_bytes());
                    }
                }
                Step::Remove(key) => {
                    let was = model.map.remove(&name(key)).is_some();
                    prop_assert_eq!(keyspace.remove(&name(key)), was);
                }
                Step::Get(key) => {
                    let held = keyspace.get(&name(key)).map(|held| held.as_ref().to_vec());
                    prop_assert_eq!(held.as_ref(), model.map.get(&name(key)));
                }
                Step::Push(key, length) => {
                    keyspace.push(&name(key), Body::Inline(&vec![key; length]));
                    model.queues.entry(name(key)).or_default().push_back(vec![key; length]);
                }
                Step::Pop(key) => {
                    let first = model.queues.get_mut(&name(key)).and_then(VecDeque::pop_front);
                    let popped = keyspace.pop(&name(key));
                    prop_assert_eq!(popped.map(|value| value.as_ref().to_vec()), first);
                }
                Step::Keep(key) => {
                    let kept = [&name(key)[..]];
                    keyspace.keep_prefixes(&kept);
                    model.map.retain(|held, _| *held == name(key));
                    model.queues.retain(|held, _| *held == name(key));
                }
            }
            model.queues.retain(|_, queue| !queue.is_empty());
            let keys: Vec<&[u8]> = keyspace.keys_after(None).collect();
            let expected: Vec<&[u8]> = model.map.keys().map(Vec::as_slice).collect();
            prop_assert_eq!(keys, expected);
            prop_assert_eq!(keyspace.queue_count(), model.queues.len());
            for key in 0..5 {
                let name = name(key);
                prop_assert_eq!(keyspace.peek(&name), model.map.get(&name).map(Vec::as_slice));
                prop_assert_eq!(
                    keyspace.queue_len(&name),
                    model.queues.get(&name).map_or(0, VecDeque::len)
                );
                let present = model.map.contains_key(&name) || model.queues.contains_key(&name);
                prop_assert_eq!(keyspace.is_present(&name), present);
            }
            let bytes: usize = model.map.values().map(Vec::len).sum();
            prop_assert!(keyspace.memory() >= bytes);
        }
        keyspace.keep_prefixes(&[]);
        prop_assert_eq!(keyspace.memory(), 0);
    }
}
