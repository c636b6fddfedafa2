use std::borrow::Cow;

use half::{bf16, f16};

use super::*;
use crate::RpcErrorKind;
use crate::device::testing::FakeDevices;

fn matrix() -> Tensor {
    Tensor::from_vec((0..6).map(f64::from).collect(), [2, 3]).unwrap()
}

#[test]
fn numbers_are_shared_not_copied() {
    let numbers = vec![1_i64, 2, 3];
    let address = numbers.as_ptr();
    let tensor = Tensor::from_vec(numbers, [3]).unwrap();
    let Cow::Borrowed(borrowed) = tensor.as_slice::<i64>().unwrap() else {
        panic!("this was copied");
    };
    assert_eq!(borrowed.as_ptr(), address);
    let matrix = matrix();
    let row = matrix.select(0, 1).unwrap();
    assert!(matches!(
        row.as_slice::<f64>().unwrap(),
        Cow::Borrowed([3.0, 4.0, 5.0])
    ));
}

#[test]
fn bytes_that_are_not_aligned_are_copied() {
    let bytes = Bytes::from([&[0][..], &1.5_f64.to_le_bytes(), &[0; 8]].concat());
    // One of eight consecutive addresses is aligned.
    let mut copied = 0;
    for start in 0..8 {
        let tensor = Tensor::from_bytes(DataType::F64, [1], bytes.slice(start..start + 8)).unwrap();
        let numbers = tensor.as_slice::<f64>().unwrap();
        copied += usize::from(matches!(numbers, Cow::Owned(_)));
        if start == 1 {
            assert_eq!(numbers[..], [1.5]);
        }
    }
    assert_eq!(copied, 7);
}

#[test]
fn views_are_read_in_the_order_of_their_indices() {
    let turned = matrix().transpose(0, 1).unwrap();
    assert_eq!(
        turned.as_slice::<f64>().unwrap()[..],
        [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    );
    assert!(turned.reshape([6]).is_err());
    let flat = turned.contiguous().unwrap().reshape([6]).unwrap();
    assert_eq!(flat.as_slice::<f64>().unwrap()[1], 3.0);
    let same = matrix();
    assert!(same.contiguous().unwrap().storage().is(same.storage()));
}

#[test]
fn every_type_of_numbers_is_read_as_itself_only() {
    let halves = Tensor::from_vec(vec![f16::from_f32(0.5)], [1]).unwrap();
    assert_eq!(halves.data_type(), DataType::F16);
    assert!(halves.as_slice::<bf16>().is_err());
    assert_eq!(
        halves.as_slice::<u16>().unwrap_err().message,
        "the elements of the tensor are F16, not u16"
    );
    let complex = Tensor::from_vec(vec![[1.0_f32, -1.0]], [1]).unwrap();
    assert_eq!(complex.data_type(), DataType::C64);
    for data_type in [
        DataType::Bool,
        DataType::F8E4M3,
        DataType::F8E5M2,
        DataType::U8,
    ] {
        let tensor = Tensor::from_bytes(data_type, [2], vec![1, 0]).unwrap();
        assert_eq!(tensor.as_slice::<u8>().unwrap()[..], [1, 0]);
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let error = Tensor::from_vec(vec![1_u8, 2], [3]).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
    assert_eq!(
        error.message,
        "a tensor of shape [3] has 3 elements, but the number of values is 2"
    );
    let error = Tensor::from_bytes(DataType::I16, [3], vec![0; 5]).unwrap_err();
    assert_eq!(
        error.message,
        "a tensor of I16 with shape [3] needs 6 bytes, but there are 5"
    );
    let meta = TensorMeta::contiguous(DataType::U8, vec![5]).unwrap();
    let storage = Storage::host(Bytes::from_static(&[0; 4]));
    assert!(Tensor::new(storage, meta).is_err());
}

#[test]
fn a_copy_that_no_memory_holds_is_an_error() {
    let byte = Storage::host(Bytes::from_static(&[1]));
    let meta = TensorMeta::new(DataType::U8, vec![1 << 62], vec![0], 0).unwrap();
    let wide = Tensor::new(byte, meta).unwrap();
    assert_eq!(
        wide.to_bytes().unwrap_err().message,
        format!(
            "cannot allocate {} bytes for a contiguous copy",
            1_u64 << 62
        )
    );
}

#[test]
fn tensors_move_to_devices_and_back() {
    let backend = FakeDevices::shared(2);
    let view = matrix().slice(1, 1..3).unwrap();
    let far = view.to_device(Device::accelerator(1), &backend).unwrap();
    assert_eq!(far.device(), Device::accelerator(1));
    assert_eq!(far.shape(), [2, 2]);
    assert_eq!(
        far.to_cpu().unwrap().as_slice::<f64>().unwrap()[..],
        [1.0, 2.0, 4.0, 5.0]
    );
    assert_eq!(far.as_slice::<f64>().unwrap()[..], [1.0, 2.0, 4.0, 5.0]);
    let error = view
        .to_device(Device::accelerator(2), &backend)
        .unwrap_err();
    assert_eq!(
        error.message,
        "device cuda:2 does not exist: accelerators of this worker: 2"
    );
}

#[test]
fn what_is_copied_to_a_device_arrives_when_it_is_waited_for() {
    let backend = FakeDevices::shared(1);
    let memory = backend.alloc(Device::accelerator(0), 2).unwrap();
    backend.copy_in(Bytes::from_static(b"ab"), &memory).unwrap();
    let event = backend.event(Device::accelerator(0)).unwrap();
    let storage = Storage::device(Arc::clone(&memory), backend, event);
    assert_eq!(FakeDevices::contents(&memory), Some(vec![0xAA; 2]));
    assert_eq!(storage.device_memory().unwrap().unwrap().len(), 2);
    assert_eq!(FakeDevices::contents(&memory), Some(b"ab".to_vec()));
    assert_eq!(storage.bytes(1..2).unwrap()[..], *b"b");
}
