//! Cards and descriptions: what a process sends to a peer about its memory.

use bytes::Bytes;
use rdzv_rpc::{Arena, is_leased};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::driver::{HANDLE, IpcHandle};

/// Length of a card and of a description.
///
/// Shorter parts of a message would be copied into it, and nothing would report their release.
pub(crate) const LENGTH: usize = 64 << 10;

/// Handle, in a form that serde supports.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sent(Vec<u8>);

impl Sent {
    pub(crate) fn new(handle: &IpcHandle) -> Self {
        Self(handle.to_vec())
    }

    pub(crate) fn handle(&self) -> Result<IpcHandle, String> {
        let wrong = |_| format!("a handle has {} bytes instead of {HANDLE}", self.0.len());
        self.0.as_slice().try_into().map_err(wrong)
    }
}

/// Segment of a process, which a peer can open.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Card {
    /// Random number of the process.
    pub(crate) process: u64,
    /// PID namespace of the process.
    pub(crate) namespace: String,
    pub(crate) segment: u64,
    pub(crate) handle: Sent,
    /// Device of the peer that will read the segment.
    pub(crate) target: u32,
}

/// Block of a segment, with the event behind the copy into it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) process: u64,
    pub(crate) segment: u64,
    pub(crate) handle: Sent,
    pub(crate) offset: u64,
    pub(crate) event: Sent,
}

/// Writes a value into the first bytes of a block of an arena.
pub(crate) fn write<T: Serialize>(value: &T, block: &mut [u8]) -> Result<(), String> {
    postcard::to_slice(value, block)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// Reads a value that a peer has leased.
pub(crate) fn read<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, String> {
    if !is_leased(bytes) && Arena::of(bytes).is_none() {
        return Err(
            "the workers do not share host memory, which shows when a read ends".to_owned(),
        );
    }
    let (value, _) = postcard::take_from_bytes(bytes).map_err(|error| error.to_string())?;
    Ok(value)
}

/// Returns the PID namespace of this process; empty if it cannot be read.
pub(crate) fn namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid");
    link.map_or_else(
        |_| String::new(),
        |link| link.to_string_lossy().into_owned(),
    )
}
