//! Tensors on accelerators.

use std::sync::{Arc, Mutex};

use rdzv_rpc::device::DeviceBackend;
use rdzv_rpc::{Method, Methods, RpcAgent, RpcError, Tensor};
use rdzv_rpc_proto::device::Device;
use serde_json::{Value, json};

/// Returns a tensor, and the device on which it arrived.
const BACK: Method<Tensor, (Tensor, u32)> = Method::new("scenario.back");

/// Keeps a tensor permanently; returns the sum of its bytes.
const KEEP: Method<Tensor, u64> = Method::new("scenario.keep_tensor");

pub(crate) fn with_methods(methods: Methods) -> Methods {
    let kept = Mutex::new(Vec::new());
    methods
        .with(BACK, async |tensor: Tensor| {
            let index = tensor.device().index().ok_or("it came to the CPU")?;
            Ok::<_, &str>((tensor, index))
        })
        .with(KEEP, move |tensor: Tensor| {
            let bytes = tensor.as_slice::<u8>();
            let sum = bytes.map(|bytes| bytes.iter().map(|byte| u64::from(*byte)).sum());
            kept.lock().expect("nothing panics here").push(tensor);
            async move { sum }
        })
}

/// Sends a tensor on this device to another worker and back.
/// Returns the device there, the device after its return, and its numbers.
pub(crate) fn send(
    agent: &RpcAgent,
    to: &str,
    device: u32,
    devices: &Arc<dyn DeviceBackend>,
) -> Result<Value, RpcError> {
    let tensor = Tensor::from_vec(vec![1_i16, 2, 3], [3])?;
    let tensor = tensor.to_device(Device::accelerator(device), devices)?;
    let (back, arrived) = agent.call(to, BACK, &tensor).wait()?;
    let numbers = back.to_cpu()?;
    Ok(json!([
        arrived,
        back.device().index(),
        numbers.as_slice::<i16>()?
    ]))
}
