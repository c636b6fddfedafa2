//! The place of a thread where tensors and references wait while a value is (de)serialised.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use crate::tensor::Tensor;

/// What a reference is for the worker that it came to. The type of references knows what is in it.
pub type Adopted = Arc<dyn Any + Send + Sync>;

/// What the value has given away so far.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) tensors: Vec<Tensor>,
    /// What the references call themselves.
    pub(super) references: Vec<Vec<u8>>,
}

/// What the value can take.
#[derive(Default)]
pub(super) struct Arrived {
    pub(super) tensors: Vec<Tensor>,
    pub(super) references: Vec<Adopted>,
}

thread_local! {
    static GIVEN: RefCell<Option<Given>> = const { RefCell::new(None) };
    static ARRIVED: RefCell<Option<Arrived>> = const { RefCell::new(None) };
}

/// Runs `serialize` with a fresh place, and returns what was left there. Whatever was there before
/// is put back, even if it panics: messages may be made while others are.
pub(super) fn giving<T>(serialize: impl FnOnce() -> T) -> (T, Given) {
    struct PutBack(Option<Given>);
    impl Drop for PutBack {
        fn drop(&mut self) {
            GIVEN.set(self.0.take());
        }
    }
    let before = PutBack(GIVEN.replace(Some(Given::default())));
    let result = serialize();
    let given = GIVEN.take().unwrap_or_default();
    drop(before);
    (result, given)
}

/// Runs `deserialize` with these things to take.
pub(super) fn taking<T>(arrived: Arrived, deserialize: impl FnOnce() -> T) -> T {
    struct PutBack(Option<Arrived>);
    impl Drop for PutBack {
        fn drop(&mut self) {
            // Dropped only after the place is free again: dropping a reference may do a lot.
            let _left = ARRIVED.replace(self.0.take());
        }
    }
    let _before = PutBack(ARRIVED.replace(Some(arrived)));
    deserialize()
}

/// A tensor of the value that is being serialised; its number.
pub(super) fn give_tensor(tensor: &Tensor) -> Result<u32, &'static str> {
    let number = |given: &mut Given| {
        given.tensors.push(tensor.clone());
        given.tensors.len()
    };
    give(number).ok_or(
        "a tensor can only be serialised within an RPC message; elsewhere use its bytes, type and shape",
    )
}

/// A reference of the value that is being serialised; its number.
pub(super) fn give_reference(local: &[u8]) -> Result<u32, &'static str> {
    let number = |given: &mut Given| {
        given.references.push(local.to_vec());
        given.references.len()
    };
    give(number)
        .ok_or("Can not pickle rref in python pickler, rref can only be pickled when using RPC")
}

/// The tensor with this number.
pub(super) fn take_tensor(number: u32) -> Result<Tensor, String> {
    let arrived = |arrived: &Arrived| {
        let tensor = arrived.tensors.get(number as usize);
        let count = arrived.tensors.len();
        tensor
            .cloned()
            .ok_or_else(|| format!("the value names tensor {number} of a message that has {count}"))
    };
    take(arrived)
        .unwrap_or_else(|| Err("a tensor can only be made out of an RPC message".to_owned()))
}

/// The reference with this number.
pub(super) fn take_reference(number: u32) -> Result<Adopted, String> {
    let arrived = |arrived: &Arrived| {
        let reference = arrived.references.get(number as usize);
        let count = arrived.references.len();
        reference.cloned().ok_or_else(|| {
            format!("the value names remote reference {number} of a message that has {count}")
        })
    };
    take(arrived).unwrap_or_else(|| {
        Err("a remote reference can only be made out of an RPC message".to_owned())
    })
}

/// None outside of [`giving`].
fn give(push: impl FnOnce(&mut Given) -> usize) -> Option<u32> {
    GIVEN.with_borrow_mut(|given| {
        let count = push(given.as_mut()?);
        // A value with 2^32 tensors would have a body over any limit.
        u32::try_from(count - 1).ok()
    })
}

/// None outside of [`taking`].
fn take<T>(look: impl FnOnce(&Arrived) -> T) -> Option<T> {
    ARRIVED.with_borrow(|arrived| arrived.as_ref().map(look))
}
