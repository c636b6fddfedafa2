//! The place of a thread where tensors and references wait while a value is (de)serialised.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;
use std::thread::LocalKey;

use crate::tensor::Tensor;

/// A place of each thread.
type Place<T> = LocalKey<RefCell<Option<T>>>;

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

/// Runs `serialize` with a fresh place, and returns what was left there.
pub(super) fn giving<T>(serialize: impl FnOnce() -> T) -> (T, Given) {
    let (result, given) = with_place(&GIVEN, Given::default(), serialize);
    (result, given.unwrap_or_default())
}

/// Runs `deserialize` with these things to take.
pub(super) fn taking<T>(arrived: Arrived, deserialize: impl FnOnce() -> T) -> T {
    with_place(&ARRIVED, arrived, deserialize).0
}

/// Runs `work` with a value in a place of this thread.
///
/// Returns what is left of the value. What was in the place before is put back, even after a panic:
/// messages may be made while others are.
fn with_place<T: 'static, R>(
    place: &'static Place<T>,
    value: T,
    work: impl FnOnce() -> R,
) -> (R, Option<T>) {
    struct PutBack<T: 'static>(&'static Place<T>, Option<T>);
    impl<T: 'static> Drop for PutBack<T> {
        fn drop(&mut self) {
            // Dropped only after the place is free again: dropping a reference may do a lot.
            let _left = self.0.replace(self.1.take());
        }
    }
    let before = PutBack(place, place.replace(Some(value)));
    let result = work();
    let left = place.take();
    drop(before);
    (result, left)
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
    take(|arrived| &arrived.tensors, number, "tensor")
}

/// The reference with this number.
pub(super) fn take_reference(number: u32) -> Result<Adopted, String> {
    take(|arrived| &arrived.references, number, "remote reference")
}

/// None outside of [`giving`].
fn give(push: impl FnOnce(&mut Given) -> usize) -> Option<u32> {
    GIVEN.with_borrow_mut(|given| {
        let count = push(given.as_mut()?);
        // A value with 2^32 tensors would have a body over any limit.
        u32::try_from(count - 1).ok()
    })
}

/// The thing with this number in one list of what can be taken.
fn take<T: Clone>(
    list: impl FnOnce(&Arrived) -> &Vec<T>,
    number: u32,
    what: &str,
) -> Result<T, String> {
    ARRIVED.with_borrow(|arrived| {
        let Some(arrived) = arrived else {
            return Err(format!("a {what} can only be made out of an RPC message"));
        };
        let all = list(arrived);
        let count = all.len();
        all.get(number as usize)
            .cloned()
            .ok_or_else(|| format!("the value names {what} {number} of a message that has {count}"))
    })
}
