//! The driver of this host, loaded when it is first used.
//!
//! This is the only file of this crate with `unsafe`. Invariants of the calls:
//!
//! - L1: the library is loaded and initialised, except in [`load`], because only [`Library::enter`]
//!   gives the context that the other calls need, and it refuses in a forked child.
//! - L2: the primary context of the device is current during a call that needs one, and the
//!   previous context of the thread is current again afterwards. Primary contexts are retained and
//!   never released, so they outlive every handle.
//! - L3: pointers to results refer to local variables that live during the call.
//! - L4: a handle was created by this driver, or the application has passed it as the handle of a
//!   stream. The driver checks handles, and reports those of a destroyed context.
//! - L5: device addresses are only passed to the driver, never dereferenced here.
//! - L6: pinned memory is accessed only between `pin` and `unpin`, within its length, and while no
//!   queued copy uses it: the caller waits for the event behind the last copy.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::panic::catch_unwind;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};
use rdzv_lock::Mutex;

use crate::driver::{
    CudaDriver, CudaEvent, CudaStream, DriverResult, Fault, HANDLE, IpcHandle, OLDEST, Pointer,
};

/// Bytes that a device keeps for later tensors after they were freed.
const KEPT: u64 = 256 << 20;

/// Flag of an event without a time.
const NO_TIME: u32 = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;

/// Flag of an event that other processes can open.
const SHARED: u32 = sys::CUevent_flags_enum::CU_EVENT_INTERPROCESS as u32;

/// Driver of this host.
#[derive(Debug, Clone, Copy, Default)]
pub struct Library;

/// Loaded library.
#[derive(Debug)]
struct Loaded {
    process: u32,
    version: u32,
    devices: Vec<Mutex<Option<Device>>>,
}

/// Device that was used.
#[derive(Debug, Clone, Copy)]
struct Device {
    context: usize,
    pool: usize,
}

/// Current context of this thread, until it is dropped.
struct Entered {
    pool: sys::CUmemoryPool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut context = null_mut();
        // SAFETY: L1, L3. `enter` has pushed the context that this removes.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut context) };
    }
}

fn checked(function: &'static str, result: CUresult) -> DriverResult<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name: *const c_char = null();
    // SAFETY: L3; the function needs no context. The name is a constant of the library.
    let name = unsafe {
        let _ = sys::cuGetErrorName(result, &raw mut name);
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    };
    Err(Fault::Call {
        function,
        code: result as u32,
        name: name.unwrap_or_else(|| format!("error {}", result as u32)),
    })
}

/// Calls a function of the driver, whose name is also that in errors.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: L1 to L5.
        checked(stringify!($function), unsafe { sys::$function($($argument),*) })
    };
}

fn load() -> DriverResult<Loaded> {
    // SAFETY: this only loads the library, whose initialiser may run in any process.
    if !unsafe { sys::is_culib_present() } {
        let text = "cannot load libcuda.so.1";
        return Err(Fault::NoDriver(text.to_owned()));
    }
    let mut version: c_int = 0;
    call!(cuDriverGetVersion(&raw mut version))?;
    let version = version.unsigned_abs();
    if version < OLDEST {
        return Err(Fault::TooOld(version));
    }
    call!(cuInit(0))?;
    let mut count: c_int = 0;
    call!(cuDeviceGetCount(&raw mut count))?;
    Ok(Loaded {
        process: std::process::id(),
        version,
        devices: (0..count).map(|_| Mutex::new(None)).collect(),
    })
}

impl Library {
    fn loaded() -> DriverResult<&'static Loaded> {
        static LOADED: OnceLock<DriverResult<Loaded>> = OnceLock::new();
        // A library that lacks a function makes `cudarc` panic.
        let loaded = LOADED.get_or_init(|| {
            catch_unwind(load).unwrap_or_else(|_| {
                let text = "libcuda.so.1 lacks functions that rdzv needs";
                Err(Fault::NoDriver(text.to_owned()))
            })
        });
        match loaded {
            Ok(loaded) if loaded.process != std::process::id() => Err(Fault::Forked),
            Ok(loaded) => Ok(loaded),
            Err(fault) => Err(fault.clone()),
        }
    }

    /// Makes the context of a device current.
    fn enter(device: u32) -> DriverResult<Entered> {
        let loaded = Self::loaded()?;
        let count = loaded.devices.len() as u32;
        let slot = loaded.devices.get(device as usize);
        let mut slot = slot
            .ok_or(Fault::NoDevice {
                index: device,
                count,
            })?
            .lock();
        let used = match *slot {
            Some(used) => used,
            None => *slot.insert(begin(device)?),
        };
        drop(slot);
        call!(cuCtxPushCurrent_v2(used.context as sys::CUcontext))?;
        Ok(Entered {
            pool: used.pool as sys::CUmemoryPool,
        })
    }
}

/// Retains the context of a device, and creates the pool for received tensors.
fn begin(index: u32) -> DriverResult<Device> {
    let mut device = 0;
    call!(cuDeviceGet(&raw mut device, index as c_int))?;
    let mut context = null_mut();
    call!(cuDevicePrimaryCtxRetain(&raw mut context, device))?;
    // SAFETY: all bytes zero are a valid value of this structure of numbers and pointers.
    let mut wanted: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    wanted.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device;
    let mut pool = null_mut();
    call!(cuMemPoolCreate(&raw mut pool, &raw const wanted))?;
    let mut kept = KEPT;
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    call!(cuMemPoolSetAttribute(
        pool,
        threshold,
        (&raw mut kept).cast()
    ))?;
    Ok(Device {
        context: context as usize,
        pool: pool as usize,
    })
}

fn raw_stream(stream: CudaStream) -> sys::CUstream {
    stream.0 as usize as sys::CUstream
}

fn raw_event(event: CudaEvent) -> sys::CUevent {
    event.0 as usize as sys::CUevent
}

/// Address of pinned memory.
fn host(pointer: Pointer) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(pointer.0 as usize)
}

fn bytes_of(reserved: [c_char; HANDLE]) -> IpcHandle {
    reserved.map(|byte| byte as u8)
}

fn chars_of(handle: &IpcHandle) -> [c_char; HANDLE] {
    handle.map(|byte| byte as c_char)
}

impl CudaDriver for Library {
    fn version(&self) -> DriverResult<u32> {
        Ok(Self::loaded()?.version)
    }

    fn count(&self) -> DriverResult<u32> {
        Ok(Self::loaded()?.devices.len() as u32)
    }

    fn stream(&self, device: u32) -> DriverResult<CudaStream> {
        let _entered = Self::enter(device)?;
        let mut stream = null_mut();
        let not_blocking = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        call!(cuStreamCreate(&raw mut stream, not_blocking))?;
        Ok(CudaStream(stream as usize as u64))
    }

    fn event(&self, device: u32, shared: bool) -> DriverResult<CudaEvent> {
        let _entered = Self::enter(device)?;
        let mut event = null_mut();
        let flags = if shared { NO_TIME | SHARED } else { NO_TIME };
        call!(cuEventCreate(&raw mut event, flags))?;
        Ok(CudaEvent(event as usize as u64))
    }

    fn destroy(&self, device: u32, event: CudaEvent) {
        if let Ok(_entered) = Self::enter(device) {
            let _ = call!(cuEventDestroy_v2(raw_event(event)));
        }
    }

    fn record(&self, device: u32, event: CudaEvent, stream: CudaStream) -> DriverResult<()> {
        let _entered = Self::enter(device)?;
        call!(cuEventRecord(raw_event(event), raw_stream(stream)))
    }

    fn wait(&self, device: u32, stream: CudaStream, event: CudaEvent) -> DriverResult<()> {
        let _entered = Self::enter(device)?;
        call!(cuStreamWaitEvent(raw_stream(stream), raw_event(event), 0))
    }

    fn is_done(&self, device: u32, event: CudaEvent) -> DriverResult<bool> {
        let _entered = Self::enter(device)?;
        // SAFETY: L1 to L4.
        match unsafe { sys::cuEventQuery(raw_event(event)) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => checked("cuEventQuery", result).map(|()| true),
        }
    }

    fn synchronize(&self, device: u32, event: CudaEvent) -> DriverResult<()> {
        let _entered = Self::enter(device)?;
        call!(cuEventSynchronize(raw_event(event)))
    }

    fn allocate(&self, device: u32, len: usize, stream: CudaStream) -> DriverResult<Pointer> {
        let entered = Self::enter(device)?;
        let mut pointer = 0;
        call!(cuMemAllocFromPoolAsync(
            &raw mut pointer,
            len,
            entered.pool,
            raw_stream(stream)
        ))?;
        Ok(Pointer(pointer))
    }

    fn free(&self, device: u32, pointer: Pointer, stream: CudaStream) -> DriverResult<()> {
        let _entered = Self::enter(device)?;
        call!(cuMemFreeAsync(pointer.0, raw_stream(stream)))
    }

    fn allocate_shared(&self, device: u32, len: usize) -> DriverResult<Pointer> {
        let _entered = Self::enter(device)?;
        let mut pointer = 0;
        call!(cuMemAlloc_v2(&raw mut pointer, len))?;
        Ok(Pointer(pointer))
    }

    fn free_shared(&self, device: u32, pointer: Pointer) -> DriverResult<()> {
        let _entered = Self::enter(device)?;
        call!(cuMemFree_v2(pointer.0))
    }

    fn copy(
        &self,
        device: u32,
        to: Pointer,
        from: Pointer,
        len: usize,
        stream: CudaStream,
    ) -> DriverResult<()> {
        let _entered = Self::enter(device)?;
        call!(cuMemcpyAsync(to.0, from.0, len, raw_stream(stream)))
    }

    fn pin(&self, device: u32, len: usize) -> DriverResult<Pointer> {
        let _entered = Self::enter(device)?;
        let mut pointer = null_mut();
        // The memory is pinned for all contexts.
        call!(cuMemHostAlloc(&raw mut pointer, len, 1))?;
        Ok(Pointer(pointer.expose_provenance() as u64))
    }

    fn unpin(&self, device: u32, pointer: Pointer) {
        if let Ok(_entered) = Self::enter(device) {
            let _ = call!(cuMemFreeHost(host(pointer).cast()));
        }
    }

    fn write(&self, to: Pointer, bytes: &[u8]) {
        // SAFETY: L6.
        unsafe { host(to).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn read(&self, from: Pointer, len: usize, into: &mut Vec<u8>) {
        // SAFETY: L6.
        into.extend_from_slice(unsafe { std::slice::from_raw_parts(host(from), len) });
    }

    fn export(&self, device: u32, pointer: Pointer) -> DriverResult<IpcHandle> {
        let _entered = Self::enter(device)?;
        let mut handle = sys::CUipcMemHandle {
            reserved: [0; HANDLE],
        };
        call!(cuIpcGetMemHandle(&raw mut handle, pointer.0))?;
        Ok(bytes_of(handle.reserved))
    }

    fn open(&self, device: u32, handle: &IpcHandle) -> DriverResult<(Pointer, usize)> {
        let _entered = Self::enter(device)?;
        let handle = sys::CUipcMemHandle {
            reserved: chars_of(handle),
        };
        let enable_peer_access = 1;
        let mut pointer = 0;
        call!(cuIpcOpenMemHandle_v2(
            &raw mut pointer,
            handle,
            enable_peer_access
        ))?;
        let (mut base, mut size) = (0, 0);
        let range = call!(cuMemGetAddressRange_v2(
            &raw mut base,
            &raw mut size,
            pointer
        ));
        if let Err(fault) = range {
            let _ = call!(cuIpcCloseMemHandle(pointer));
            return Err(fault);
        }
        Ok((Pointer(pointer), size))
    }

    fn close(&self, device: u32, pointer: Pointer) {
        if let Ok(_entered) = Self::enter(device) {
            let _ = call!(cuIpcCloseMemHandle(pointer.0));
        }
    }

    fn export_event(&self, device: u32, event: CudaEvent) -> DriverResult<IpcHandle> {
        let _entered = Self::enter(device)?;
        let mut handle = sys::CUipcEventHandle {
            reserved: [0; HANDLE],
        };
        call!(cuIpcGetEventHandle(&raw mut handle, raw_event(event)))?;
        Ok(bytes_of(handle.reserved))
    }

    fn open_event(&self, device: u32, handle: &IpcHandle) -> DriverResult<CudaEvent> {
        let _entered = Self::enter(device)?;
        let handle = sys::CUipcEventHandle {
            reserved: chars_of(handle),
        };
        let mut event = null_mut();
        call!(cuIpcOpenEventHandle(&raw mut event, handle))?;
        Ok(CudaEvent(event as usize as u64))
    }
}
