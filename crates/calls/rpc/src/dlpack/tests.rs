use std::sync::{Arc, Mutex};

use super::*;
use crate::RpcErrorKind;

fn matrix() -> Tensor {
    Tensor::from_vec((0..12).collect::<Vec<i32>>(), [3, 4]).unwrap()
}

fn back<M: ManagedTensorBase + 'static>(foreign: Managed<M>) -> Result<Tensor, RpcError> {
    // SAFETY: all tensors of these tests belong to the test or live in the context of their tensor.
    unsafe { Tensor::from_dlpack(foreign) }
}

fn address(tensor: &Tensor) -> usize {
    let bytes = tensor.storage().host_bytes().unwrap();
    bytes[tensor.meta().offset()..].as_ptr().addr()
}

/// Counts its drops.
struct Owner {
    numbers: Vec<u16>,
    dropped: Arc<Mutex<u32>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        *self.dropped.lock().unwrap() += 1;
    }
}

/// Creates a tensor of another library, over numbers from 0.
fn foreign(
    shape: &[i64],
    strides: &[i64],
    change: impl FnOnce(&mut dlpark::ffi::DLTensor),
) -> (Versioned, Arc<Mutex<u32>>) {
    let dropped = Arc::new(Mutex::new(0));
    let owner = Box::new(Owner {
        numbers: (0..100).collect(),
        dropped: Arc::clone(&dropped),
    });
    let data = owner.numbers.as_ptr().cast_mut().cast();
    let described = Dynamic::new(shape, strides).prepare_as().unwrap();
    let mut initialized = described.initialize(owner);
    initialized
        .set_data(data)
        .set_device(DLDevice::CPU)
        .set_dtype(DLDataType::U16);
    change(initialized.tensor_mut());
    // SAFETY: what the tests import lies within the numbers, which the context owns.
    (unsafe { initialized.finish() }, dropped)
}

#[test]
fn memory_goes_there_and_back_without_a_copy() {
    let column = matrix().transpose(0, 1).unwrap().slice(0, 1..3).unwrap();
    let exported: Versioned = column.to_dlpack().unwrap();
    assert!(exported.flags().contains(DlpackFlags::READ_ONLY));
    assert_eq!(
        exported.validate_export().unwrap().strides(),
        Some(&[1, 4][..])
    );
    let again = back(exported).unwrap();
    assert_eq!(address(&again), address(&column));
    assert_eq!(again.as_slice::<i32>().unwrap()[..], [1, 5, 9, 2, 6, 10]);
    let again = back(again.to_dlpack::<dlpark::ffi::DLManagedTensor>().unwrap()).unwrap();
    assert_eq!(address(&again), address(&column));
}

#[test]
fn what_is_shared_outlives_the_tensor() {
    let exported: Legacy = {
        let tensor = matrix();
        tensor.select(0, 2).unwrap().to_dlpack().unwrap()
    };
    assert_eq!(
        back(exported).unwrap().as_slice::<i32>().unwrap()[..],
        [8, 9, 10, 11]
    );
}

#[test]
fn foreign_memory_is_given_back_with_the_last_view() {
    let (tensor, dropped) = foreign(&[2, 3], &[10, 2], |_| ());
    let tensor = back(tensor).unwrap();
    let row = tensor.select(0, 1).unwrap();
    drop(tensor);
    let part = row.storage().bytes(20..24).unwrap();
    assert_eq!(row.as_slice::<u16>().unwrap()[..], [10, 12, 14]);
    drop(row);
    assert_eq!(*dropped.lock().unwrap(), 0);
    assert_eq!(part[..], [10, 0, 11, 0]);
    drop(part);
    assert_eq!(*dropped.lock().unwrap(), 1);
}

#[test]
fn the_offset_of_a_foreign_tensor_counts() {
    let (tensor, _) = foreign(&[3], &[1], |tensor| tensor.byte_offset = 8);
    assert_eq!(
        back(tensor).unwrap().as_slice::<u16>().unwrap()[..],
        [4, 5, 6]
    );
}

#[test]
fn numbers_and_nothing_are_handed_over() {
    let number = Tensor::from_vec(vec![7.5_f64], []).unwrap();
    let exported: Versioned = number.to_dlpack().unwrap();
    assert_eq!(
        back(exported).unwrap().as_slice::<f64>().unwrap()[..],
        [7.5]
    );
    let nothing = Tensor::from_vec(Vec::<f32>::new(), [4, 0]).unwrap();
    let exported: Versioned = nothing.to_dlpack().unwrap();
    assert_eq!(back(exported).unwrap().shape(), [4, 0]);
}

#[test]
fn what_cannot_be_sent_is_given_back_at_once() {
    let refusal = |shape: &[i64], strides: &[i64], change: &dyn Fn(&mut dlpark::ffi::DLTensor)| {
        let (tensor, dropped) = foreign(shape, strides, change);
        let error = back(tensor).unwrap_err();
        assert_eq!(*dropped.lock().unwrap(), 1);
        assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
        error.message
    };
    assert_eq!(
        refusal(&[2, 2], &[-2, 1], &|_| ()),
        "stride -2 of dimension 0 is negative; make a contiguous copy first"
    );
    assert!(
        refusal(&[2], &[1], &|tensor| tensor.device = DLDevice::cuda(1))
            .starts_with("the tensor is on a device (type 2, number 1) of another library")
    );
    assert_eq!(
        refusal(&[2], &[1], &|tensor| tensor.dtype = DLDataType::C128),
        "cannot send elements of DLPack type code 5 (bits: 128, lanes: 1)"
    );
    assert!(refusal(&[2], &[1], &|tensor| tensor.dtype.lanes = 4).contains("lanes: 4"));
    let null = &|tensor: &mut dlpark::ffi::DLTensor| tensor.data = std::ptr::null_mut();
    assert!(!refusal(&[2], &[1], null).is_empty());
}

#[test]
fn a_tensor_on_a_device_is_not_shared() {
    let backend = crate::device::testing::FakeDevices::shared(1);
    let far = matrix().to_device(0.into(), &backend).unwrap();
    let error = far
        .to_dlpack::<dlpark::ffi::DLManagedTensor>()
        .err()
        .unwrap();
    assert!(
        error
            .message
            .starts_with("a tensor on cuda:0 must be copied")
    );
    assert!(
        far.to_cpu()
            .unwrap()
            .to_dlpack::<dlpark::ffi::DLManagedTensor>()
            .is_ok()
    );
}
