//! Devices of tensors.
//!
//! Memory of the host needs nothing from this module: tensors on the CPU are `Bytes`. For
//! accelerators there is [`DeviceBackend`], which allocates on a device and copies to and from it.
//!
//! # How to add an accelerator
//!
//! One file needs three types: its memory (a [`DeviceMemory`]), a point in a stream of its work (an
//! [`Event`]), and a [`DeviceBackend`] that creates both. With CUDA:
//!
//! - `alloc` is `cudaMallocAsync` on a pool's stream.
//! - `copy_in` is `cudaMemcpyAsync` from the host on that stream. It takes `Bytes`, which the
//!   memory keeps until the event.
//! - `event` is `cudaEventRecord`, and its `wait` is `cudaEventSynchronize`.
//! - `copy_out` waits for the memory's own stream and copies into pinned memory, which
//!   `Bytes::from_owner` wraps.
//!
//! Pass the backend to [`RpcAgentBuilder::device_backend`](crate::RpcAgentBuilder::device_backend).
//! No other file distinguishes between backends; `testing` (feature of the same name) has a small
//! complete backend.

mod backend;
mod cpu;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use rdzv_rpc_proto::device::{
    BadDevice, Device, DeviceData, DeviceMap, DeviceType, NotOneToOne,
};

pub use backend::{DeviceBackend, DeviceMemory, Event};
pub use cpu::CpuOnly;
