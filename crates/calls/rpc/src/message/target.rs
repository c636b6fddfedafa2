//! Device on which the receiver puts a tensor.

use rdzv_rpc_proto::device::Device;
use rdzv_rpc_proto::device::check::CheckRow;

use super::{Direction, Outgoing};
use crate::{RpcError, RpcErrorKind};

/// Returns the device on which the destination will put a tensor.
///
/// The error texts are those of PyTorch, except for the brackets around the device list, the type
/// of the options, and the remedy. PyTorch also writes "Request" for responses.
pub(super) fn target(device: Device, outgoing: &Outgoing<'_>) -> Result<Device, RpcError> {
    let refused = |message: String| {
        RpcError::new(RpcErrorKind::DeviceMap, message).with_worker(outgoing.destination.clone())
    };
    let no_map = || {
        format!(
            "TensorPipe RPC backend only supports CPU tensors by default, please move your tensors \
             to CPU before sending them over RPC, or call `set_device_map` on \
             `RpcOptions` to explicitly configure device mapping. {} device mapping \
             is not available for destination {}",
            outgoing.direction, outgoing.destination.name,
        )
    };
    let target = match outgoing.device_map {
        None if device.is_cpu() => Device::CPU,
        None => {
            let text = format!("{}, but found tensor on device: {device}", no_map());
            return Err(refused(text));
        }
        Some(map) => match map.get(device) {
            Some(target) => target,
            None if device.is_cpu() => Device::CPU,
            None => {
                let text = format!(
                    "{} for device {device} but received a tensor on that device.",
                    no_map()
                );
                return Err(refused(text));
            }
        },
    };
    // This check follows the maps, as in PyTorch.
    if outgoing.direction == Direction::Response
        && let Some(devices) = outgoing.devices
        && !device.is_cpu()
        && !devices.contains(&device)
    {
        let list = CheckRow(devices.to_vec());
        return Err(refused(format!(
            "RPC detected that a user-function output tensor on device {device}. This device is not \
             one of the input tensor devices: {list}, which is not yet supported. Move the tensor to \
             one of them, or name its device in the options of this worker."
        )));
    }
    Ok(target)
}
