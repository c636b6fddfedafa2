//! PyTorch tensors through rdzv messages and back, in one process.
//!
//! This is a library with C functions. Python calls them with the pointers of its capsules; see
//! `interop/test_dlpack.py`.

#![allow(unsafe_code)]

use dlpark::ffi::{DLManagedTensor, DLManagedTensorVersioned};
use dlpark::{Managed, ManagedTensorBase};
use rdzv_rpc::device::CpuOnly;
use rdzv_rpc::message::{Incoming, Outgoing, decode, encode};
use rdzv_rpc::tensor::Tensor;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};

/// Passes a tensor through a message; returns it as the receiver gets it.
/// Returns null on failure.
///
/// # Safety
///
/// `tensor` comes from a capsule that no longer owns it; no code writes to its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_there_and_back(
    tensor: *mut DLManagedTensorVersioned,
) -> *mut DLManagedTensorVersioned {
    // SAFETY: as the caller promised.
    unsafe { through(tensor, |tensor| there_and_back(&tensor)) }
}

/// Same as [`rdzv_there_and_back`], for pointers of the older kind.
///
/// # Safety
///
/// The rules of [`rdzv_there_and_back`] apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_there_and_back_legacy(
    tensor: *mut DLManagedTensor,
) -> *mut DLManagedTensor {
    // SAFETY: as the caller promised.
    unsafe { through(tensor, |tensor| there_and_back(&tensor)) }
}

/// Returns the first row of a tensor, and drops the rest here.
///
/// # Safety
///
/// The rules of [`rdzv_there_and_back`] apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_first_row(
    tensor: *mut DLManagedTensorVersioned,
) -> *mut DLManagedTensorVersioned {
    let row = |tensor: Tensor| tensor.select(0, 0).map_err(|error| error.to_string());
    // SAFETY: as the caller promised.
    unsafe { through(tensor, row) }
}

unsafe fn through<M: ManagedTensorBase + 'static>(
    tensor: *mut M,
    work: impl FnOnce(Tensor) -> Result<Tensor, String>,
) -> *mut M {
    let result = || -> Result<*mut M, String> {
        // SAFETY: as the caller promised.
        let managed = unsafe { Managed::from_raw(tensor) }.map_err(|error| error.to_string())?;
        // SAFETY: as the caller promised.
        let tensor = unsafe { Tensor::from_dlpack(managed) }.map_err(|error| error.to_string())?;
        let managed = work(tensor)?
            .to_dlpack()
            .map_err(|error| error.to_string())?;
        Ok(managed.into_raw())
    };
    result().unwrap_or_else(|error| {
        eprintln!("{error}");
        std::ptr::null_mut()
    })
}

fn there_and_back(tensor: &Tensor) -> Result<Tensor, String> {
    let worker = WorkerInfo {
        id: WorkerId(0),
        name: WorkerName::new("other").map_err(|error| error.to_string())?,
    };
    let payload = encode(tensor, &mut Outgoing::request(&worker)).map_err(|e| e.to_string())?;
    let backend = CpuOnly::shared();
    decode(&payload, &mut Incoming::new(&worker, &backend)).map_err(|e| e.to_string())
}
