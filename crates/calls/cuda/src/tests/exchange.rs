//! Tensors of other libraries, in and out.

use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc::Tensor;
use rdzv_rpc::device::{Device, DeviceBackend};
use rdzv_rpc::dlpack::{self, Legacy, Versioned};
use rdzv_rpc::tensor::DataType;

use super::fake::{DEVICES, Fake, World};
use crate::backend::Cuda;
use crate::driver::CudaStream;
use crate::lending::CudaLimits;
use crate::state::Shared;

#[test]
fn a_tensor_goes_out_and_in_again_with_its_device_address_and_strides() {
    let world = World::new(1);
    let stream = world.lock().new_stream(0);
    let fake = Fake { world, process: 0 };
    let cuda = Cuda::of(Arc::new_cyclic(|own| {
        let mut shared = Shared::own(own, fake.clone(), DEVICES, CudaLimits::default());
        shared.has_threads = false;
        shared
    }));
    let backend: Arc<dyn DeviceBackend> = Arc::new(cuda.clone());
    let host = Tensor::from_vec((0..6_i16).collect(), [2, 3]).unwrap();
    let tensor = host.to_device(Device::accelerator(1), &backend).unwrap();
    let columns = tensor.slice(1, 1..3).unwrap();
    let exported: Versioned = columns.to_dlpack().unwrap();
    let found = dlpack::on_device(&exported).unwrap().unwrap();
    assert_eq!(found.device, Device::accelerator(1));
    let start = tensor.storage().memory().unwrap().address().unwrap();
    assert_eq!(found.address, start + 2);
    let imported = cuda
        .from_dlpack(exported, Some(CudaStream(stream)))
        .unwrap();
    drop((tensor, columns));
    // The other library still has the memory.
    assert_eq!(imported.as_slice::<i16>().unwrap()[..], [1, 2, 4, 5]);
    drop(imported);
    while fake.world.lock().step() {}
    assert_eq!(fake.world.lock().wrong, Vec::<String>::new());
}

#[test]
fn a_tensor_in_host_memory_is_not_one_of_a_device() {
    let world = World::new(1);
    let fake = Fake { world, process: 0 };
    let cuda = Cuda::of(Shared::new(fake, DEVICES, CudaLimits::default()));
    let tensor = Tensor::from_bytes(DataType::U8, [4], Bytes::from_static(b"host")).unwrap();
    let exported: Legacy = tensor.to_dlpack().unwrap();
    let refused = cuda.from_dlpack(exported, None).unwrap_err();
    assert!(
        refused.to_string().contains("not on a CUDA device"),
        "{refused}"
    );
}
