//! The functions of the CUDA driver that this crate calls, and their failures.

use std::fmt;

/// Oldest CUDA version of a driver that has stream-ordered memory.
pub const OLDEST: u32 = 11_020;

/// Size of a handle to memory or to an event, for another process.
pub const HANDLE: usize = 64;

/// Handle to memory or to an event, for another process.
pub type IpcHandle = [u8; HANDLE];

/// Queue of work on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaStream(pub u64);

impl CudaStream {
    /// Legacy default stream of a context, which waits for its blocking streams.
    pub const LEGACY: Self = Self(1);
}

/// Point in a queue of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaEvent(pub u64);

/// Address of device memory, or of pinned host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pointer(pub u64);

impl Pointer {
    /// Returns the address of a later byte.
    #[must_use]
    pub const fn plus(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes as u64))
    }
}

/// Failure of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The library of the driver cannot be loaded.
    NoDriver(String),
    /// The driver supports only this CUDA version.
    TooOld(u32),
    /// The parent of this process used CUDA before the fork.
    Forked,
    /// The device does not exist.
    NoDevice {
        /// Index of the device.
        index: u32,
        /// Number of devices.
        count: u32,
    },
    /// A function of the driver failed.
    Call {
        /// Name of the function.
        function: &'static str,
        /// Number of the error.
        code: u32,
        /// Name of the error, e.g. `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
    },
}

impl Fault {
    /// `true` if the device has too little memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Call { code: 2, .. })
    }

    /// `true` if a context, or an object of a context, no longer exists.
    pub fn is_gone(&self) -> bool {
        let gone = |code: &u32| matches!(code, 4 | 201 | 400 | 709);
        matches!(self, Self::Call { code, .. } if gone(code))
    }

    /// Returns the remedy, if there is one.
    pub(crate) fn help(&self) -> Option<&'static str> {
        Some(match self {
            Self::NoDriver(_) => {
                "install the NVIDIA driver; in a container, start it with the GPUs (docker run \
                 --gpus all)"
            }
            Self::TooOld(_) => "update the NVIDIA driver, or send tensor.cpu()",
            Self::Forked => {
                "start worker processes with the method \"spawn\", or fork before the first use of \
                 CUDA"
            }
            Self::NoDevice { .. } => "check CUDA_VISIBLE_DEVICES and the device map",
            Self::Call { .. } if self.is_out_of_memory() => {
                "free tensors on the device, or send smaller tensors"
            }
            Self::Call { .. } => return None,
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver(error) => write!(formatter, "this host has no CUDA driver: {error}"),
            Self::TooOld(found) => write!(
                formatter,
                "the driver supports CUDA {}, but rdzv needs CUDA {} or newer",
                version(*found),
                version(OLDEST)
            ),
            Self::Forked => formatter.write_str(
                "this process was forked after its parent had used CUDA, which does not survive a \
                 fork",
            ),
            Self::NoDevice { index, count } => write!(
                formatter,
                "device cuda:{index} does not exist: accelerators of this worker: {count}"
            ),
            Self::Call { function, name, .. } => write!(formatter, "{function}: {name}"),
        }
    }
}

/// Formats the number of a CUDA version, e.g. 12040 as 12.4.
pub(crate) fn version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Result of a call to the driver.
pub type DriverResult<T> = Result<T, Fault>;

/// Functions of the CUDA driver.
///
/// Copies and the work between them run in the order of their stream, later than the call. Only
/// [`synchronize`](Self::synchronize) and the functions that free memory may wait for a device.
pub trait CudaDriver: fmt::Debug + Send + Sync + 'static {
    /// Loads the driver if necessary; returns the CUDA version that it supports.
    fn version(&self) -> DriverResult<u32>;
    /// Returns the number of devices.
    fn count(&self) -> DriverResult<u32>;
    /// Creates a stream, which lives as long as the process.
    fn stream(&self, device: u32) -> DriverResult<CudaStream>;
    /// Creates an event, for this process or also for others.
    fn event(&self, device: u32, shared: bool) -> DriverResult<CudaEvent>;
    /// Destroys an event, after the work that uses it.
    fn destroy(&self, device: u32, event: CudaEvent);
    /// Moves an event to the end of a stream.
    fn record(&self, device: u32, event: CudaEvent, stream: CudaStream) -> DriverResult<()>;
    /// Makes later work of a stream wait for the last record of an event.
    fn wait(&self, device: u32, stream: CudaStream, event: CudaEvent) -> DriverResult<()>;
    /// `true` if the last record of an event was reached.
    fn is_done(&self, device: u32, event: CudaEvent) -> DriverResult<bool>;
    /// Blocks until the last record of an event was reached.
    fn synchronize(&self, device: u32, event: CudaEvent) -> DriverResult<()>;
    /// Allocates memory that work queued later on the stream can use.
    fn allocate(&self, device: u32, len: usize, stream: CudaStream) -> DriverResult<Pointer>;
    /// Frees such memory after the work queued on the stream.
    fn free(&self, device: u32, pointer: Pointer, stream: CudaStream) -> DriverResult<()>;
    /// Allocates memory that other processes can open.
    fn allocate_shared(&self, device: u32, len: usize) -> DriverResult<Pointer>;
    /// Frees such memory immediately; no queued work may use it.
    fn free_shared(&self, device: u32, pointer: Pointer) -> DriverResult<()>;
    /// Queues a copy between devices, or between a device and pinned memory.
    fn copy(
        &self,
        device: u32,
        to: Pointer,
        from: Pointer,
        len: usize,
        stream: CudaStream,
    ) -> DriverResult<()>;
    /// Allocates pinned host memory.
    fn pin(&self, device: u32, len: usize) -> DriverResult<Pointer>;
    /// Frees pinned host memory, which no queued work uses.
    fn unpin(&self, device: u32, pointer: Pointer);
    /// Writes to pinned memory, which no queued work uses.
    fn write(&self, to: Pointer, bytes: &[u8]);
    /// Appends bytes of pinned memory, which no queued work writes.
    fn read(&self, from: Pointer, len: usize, into: &mut Vec<u8>);
    /// Returns the handle of shared memory, for other processes.
    fn export(&self, device: u32, pointer: Pointer) -> DriverResult<IpcHandle>;
    /// Opens memory of another process; returns its address here and its size.
    fn open(&self, device: u32, handle: &IpcHandle) -> DriverResult<(Pointer, usize)>;
    /// Closes memory of another process, which no queued work uses.
    fn close(&self, device: u32, pointer: Pointer);
    /// Returns the handle of a shared event, for other processes.
    fn export_event(&self, device: u32, event: CudaEvent) -> DriverResult<IpcHandle>;
    /// Opens an event of another process.
    fn open_event(&self, device: u32, handle: &IpcHandle) -> DriverResult<CudaEvent>;
}
