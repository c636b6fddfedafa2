//! CUDA tensors in calls between workers.
//!
//! [`Cuda`] is a [`DeviceBackend`](rdzv_rpc::device::DeviceBackend). It loads the driver when the
//! first tensor on a device needs it. All work is queued on streams in the order that events
//! define. The host waits only where bytes go through host memory, or where a caller requests
//! complete [device memory](rdzv_rpc::tensor::Storage::device_memory).
//!
//! ```text
//!   sender                                            receiver, same host
//!   tensor ─► event on the producer's stream
//!   copy stream: wait ─► copy to a block ─► event
//!   description of the block ── in the message ─────► copy stream: wait ─► copy ─► event ─► tensor
//!   block is free ◄── bytes of the description are released, when the copy is done ──┘
//! ```
//!
//! - Each segment has an [`Arena`](rdzv_rpc::Arena) with blocks at the same offsets. The
//!   description of a block is in the arena, and most pages of the arena are never used. A block
//!   of a segment is therefore free when the arena says so: after the last release by a peer, or
//!   after the death of the peer.
//! - A peer opens a segment once for each of its devices, when it gets the *card* of the segment.
//!   Until it has confirmed that, and if it cannot open the segment, tensors go through pinned host
//!   memory.
//! - The framework's memory is never exported, because a handle refers to a whole allocation.
//!
//! | file | content |
//! |---|---|
//! | [`driver`] | the functions of the driver as a trait, and their failures |
//! | `library` | the driver of this host; the only file with `unsafe` |
//! | `state` | streams, events, and the work whose end is awaited |
//! | `memory` | memory of a tensor, and of other libraries |
//! | `lending` | segments, blocks and cards of this process |
//! | `borrowing` | segments of peers that are open here |
//! | `pinned`, `staging` | copies through pinned memory |
//! | `wire` | cards and descriptions as bytes |
//! | `backend` | the device backend |

mod backend;
mod borrowing;
pub mod driver;
mod lending;
mod library;
mod memory;
mod pinned;
mod staging;
mod state;
#[cfg(test)]
mod tests;
mod wire;

pub use backend::Cuda;
pub use driver::{CudaDriver, CudaEvent, CudaStream, Fault, IpcHandle, Pointer};
pub use lending::CudaLimits;
pub use library::Library;
pub use memory::CudaMemory;
