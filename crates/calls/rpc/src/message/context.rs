//! Thread-local slots for tensors and references during serialisation.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;
use std::thread::LocalKey;

use serde::{Deserialize, Deserializer, Serializer, de, ser};

use crate::tensor::Tensor;

type Slot<T> = LocalKey<RefCell<Option<T>>>;

/// Reference in the form in which this worker holds it.
pub type LocalReference = Arc<dyn Any + Send + Sync>;

/// Tensors and references that serialisation has stored until now.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) tensors: Vec<Tensor>,
    pub(super) references: Vec<LocalReference>,
}

/// Tensors and references that deserialisation can take.
#[derive(Default)]
pub(super) struct Arrived {
    pub(super) tensors: Vec<Tensor>,
    pub(super) references: Vec<LocalReference>,
}

thread_local! {
    static GIVEN: RefCell<Option<Given>> = const { RefCell::new(None) };
    static ARRIVED: RefCell<Option<Arrived>> = const { RefCell::new(None) };
}

/// Runs `serialize` with a fresh slot, and returns the content of the slot.
pub(super) fn giving<T>(serialize: impl FnOnce() -> T) -> (T, Given) {
    let (result, given) = with_slot(&GIVEN, Given::default(), serialize);
    (result, given.unwrap_or_default())
}

/// Runs `deserialize`, which can take these tensors and references.
pub(super) fn taking<T>(arrived: Arrived, deserialize: impl FnOnce() -> T) -> T {
    with_slot(&ARRIVED, arrived, deserialize).0
}

/// Runs `work` with `value` in a slot; returns the final content of the slot.
///
/// The previous content of the slot is restored, even after a panic. The serialisation of one
/// message can run inside that of another message.
fn with_slot<T: 'static, R>(
    slot: &'static Slot<T>,
    value: T,
    work: impl FnOnce() -> R,
) -> (R, Option<T>) {
    struct PutBack<T: 'static>(&'static Slot<T>, Option<T>);
    impl<T: 'static> Drop for PutBack<T> {
        fn drop(&mut self) {
            // Dropped only after the slot is free again, because dropping a reference may run more
            // code.
            let _left = self.0.replace(self.1.take());
        }
    }
    let before = PutBack(slot, slot.replace(Some(value)));
    let result = work();
    let left = slot.take();
    drop(before);
    (result, left)
}

/// Appends a value to a list, and serialises its index in the list.
///
/// # Errors
///
/// Fails with the text `outside` if no message is being serialised.
pub(super) fn give<T, S: Serializer>(
    list: impl FnOnce(&mut Given) -> &mut Vec<T>,
    value: T,
    outside: &str,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let number = GIVEN.with_borrow_mut(|given| {
        let all = list(given.as_mut()?);
        all.push(value);
        // A value with 2^32 tensors would have a body over the limit.
        u32::try_from(all.len() - 1).ok()
    });
    serializer.serialize_u32(number.ok_or_else(|| ser::Error::custom(outside))?)
}

/// Deserialises an index, and returns the value at this index in a list.
pub(super) fn take<'de, T: Clone, D: Deserializer<'de>>(
    list: impl FnOnce(&Arrived) -> &Vec<T>,
    what: &str,
    deserializer: D,
) -> Result<T, D::Error> {
    let number = u32::deserialize(deserializer)?;
    ARRIVED.with_borrow(|arrived| {
        let Some(arrived) = arrived else {
            let text = format!("a {what} can only be deserialised from an RPC message");
            return Err(de::Error::custom(text));
        };
        let all = list(arrived);
        all.get(number as usize).cloned().ok_or_else(|| {
            let count = all.len();
            let text = format!("the value refers to {what} {number}, but the message has {count}");
            de::Error::custom(text)
        })
    })
}
