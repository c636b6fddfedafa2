//! Devices that hold tensors, and backends for accelerators.
//!
//! Tensors in host memory are `Bytes` and need nothing from this module. A [`DeviceBackend`] adds
//! support for accelerators: it allocates memory on a device and copies data to and from it.
//!
//! # How to add an accelerator
//!
//! Write three types in one file: the memory (a [`DeviceMemory`]), a point in a stream of work (a
//! [`DeviceEvent`]), and a [`DeviceBackend`] that creates both. With CUDA:
//!
//! - `alloc` calls `cudaMallocAsync` on the stream of a pool.
//! - `copy_in` calls `cudaMemcpyAsync` from the host on that stream. The memory keeps the `Bytes`
//!   until the event.
//! - `event` calls `cudaEventRecord`, and its `wait` calls `cudaEventSynchronize`.
//! - `copy_out` waits for the stream of the memory and copies into pinned memory, which
//!   `Bytes::from_owner` wraps.
//!
//! Pass the backend to [`RpcAgentBuilder::device_backend`](crate::RpcAgentBuilder::device_backend).
//! No other file distinguishes between backends, except that `dlpack` knows only CUDA, and that
//! groups accept only devices of kind `cuda`. The module `testing` (enabled by the feature of the
//! same name) contains a small but complete backend.

mod backend;
mod cpu;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use rdzv_rpc_proto::device::{
    BadDevice, Device, DeviceData, DeviceMap, DeviceType, NotOneToOne,
};

pub use backend::{DeviceBackend, DeviceEvent, DeviceLender, DeviceMemory, FilledMemory, Loan};
pub use cpu::CpuOnly;
