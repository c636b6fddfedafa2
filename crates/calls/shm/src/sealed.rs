//! Anonymous memory, sealed before others have it, and its mappings.
//!
//! A file that can shrink is dangerous: access to a mapped page beyond its end causes SIGBUS. The
//! seals of a memfd rule that out permanently, and the receiver checks them before it maps.

use std::os::fd::{AsFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create,
};

use crate::error::{Result, ShmError, uninterrupted};

/// Seals that fix the size; they can never be removed.
const FIXED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Mapping that several processes share.
///
/// The mapping stays when the descriptor is closed.
pub(crate) type Memory = MmapRaw;

/// State of the pages of new memory before their first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// The pages exist: a system without memory reports an error now.
    ///
    /// Otherwise the system would end a process later.
    Reserved,
    /// The pages are created at the first access, or by [`reserve`].
    ///
    /// Only this process can ever write them.
    OnDemandWrittenHere,
}

/// Creates zeroed memory of this many bytes, mapped for reading and writing.
///
/// Returns the descriptor to pass to peers, and the mapping.
pub(crate) fn create(name: &str, length: usize, pages: Pages) -> Result<(OwnedFd, Memory)> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(ShmError::system("create a memory file"))?;
    let size = length as u64;
    ftruncate(&file, size).map_err(ShmError::system("set the size of a memory file"))?;
    if pages == Pages::Reserved {
        reserve(&file, length)?;
    }
    let map = MmapOptions::new().len(length).map_raw(&file);
    let map = map.map_err(ShmError::system("map memory to share"))?;
    let seals = match pages {
        Pages::Reserved => FIXED,
        // The existing mapping stays writable; later mappings cannot be writable.
        Pages::OnDemandWrittenHere => FIXED | SealFlags::FUTURE_WRITE,
    };
    fcntl_add_seals(&file, seals).map_err(ShmError::system("seal memory to share"))?;
    Ok((file, map))
}

/// Reserves all of the memory from the system.
///
/// A system without memory reports an error now. Otherwise the system would end a process later.
pub(crate) fn reserve(file: &impl AsFd, length: usize) -> Result<()> {
    uninterrupted(|| fallocate(file, FallocateFlags::empty(), 0, length as u64))
        .map_err(ShmError::system("reserve memory to share"))
}

/// Maps memory that a peer passed, for reading and writing.
pub(crate) fn open(file: &impl AsFd, length: usize) -> Result<Memory> {
    check(file, length)?;
    let map = MmapOptions::new().len(length).map_raw(&file.as_fd());
    map.map_err(ShmError::system("map the peer's memory"))
}

/// Maps memory that a peer passed, for reading only.
pub(crate) fn open_to_read(file: &impl AsFd, length: usize) -> Result<Memory> {
    check(file, length)?;
    let map = MmapOptions::new()
        .len(length)
        .map_raw_read_only(&file.as_fd());
    map.map_err(ShmError::system("map the peer's memory for reading"))
}

/// Checks that every access within the length is safe, whatever the peer does.
fn check(file: &impl AsFd, length: usize) -> Result<()> {
    const WHAT: &str = "sealed memory";
    if length == 0 {
        return Err(ShmError::refused(WHAT, "its specified length is 0"));
    }
    let seals = fcntl_get_seals(file)
        .map_err(|_| ShmError::refused(WHAT, "it is another kind of file, without seals"))?;
    if !seals.contains(FIXED) {
        let found = format!("its size can change; it has only the seals {seals:?}");
        return Err(ShmError::refused(WHAT, found));
    }
    let status = fstat(file).map_err(ShmError::system("get the size of the peer's memory"))?;
    if u64::try_from(status.st_size).ok() != Some(length as u64) {
        let found = format!("it has {} bytes instead of {length}", status.st_size);
        return Err(ShmError::refused(WHAT, found));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(file: &OwnedFd, length: usize) -> String {
        open(file, length).unwrap_err().to_string()
    }

    fn unsealed(length: u64) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("test", flags).unwrap();
        ftruncate(&file, length).unwrap();
        file
    }

    #[test]
    fn sealed_memory_is_mapped_with_its_size() {
        let (file, mine) = create("test", 8192, Pages::Reserved).unwrap();
        let theirs = open(&file, 8192).unwrap();
        assert_eq!((mine.len(), theirs.len()), (8192, 8192));
        assert!(ftruncate(&file, 4096).is_err(), "it was made shorter");
    }

    #[test]
    fn memory_that_can_be_made_shorter_is_refused() {
        let file = unsealed(8192);
        assert!(refusal(&file, 8192).contains("its size can change"));
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        // Without the last seal it cannot shrink either, but the protocol requires that seal.
        assert!(refusal(&file, 8192).contains("its size can change"));
        fcntl_add_seals(&file, SealFlags::SEAL).unwrap();
        open(&file, 8192).unwrap();
    }

    #[test]
    fn memory_that_is_shorter_than_it_was_said_to_be_is_refused() {
        let file = unsealed(4096);
        fcntl_add_seals(&file, FIXED).unwrap();
        assert!(refusal(&file, 8192).contains("it has 4096 bytes instead of 8192"));
        assert!(refusal(&file, 0).contains("length is 0"));
    }

    #[test]
    fn another_kind_of_file_is_refused() {
        let file = std::fs::File::open("/dev/zero").unwrap();
        assert!(refusal(&file.into(), 4096).contains("another kind of file"));
    }

    #[test]
    fn an_arena_can_be_written_by_its_owner_only() {
        let (file, mine) = create("test", 4096, Pages::OnDemandWrittenHere).unwrap();
        assert!(open(&file, 4096).is_err(), "a peer mapped it for writing");
        let theirs = open_to_read(&file, 4096).unwrap();
        assert_eq!(theirs.len(), mine.len());
    }
}
