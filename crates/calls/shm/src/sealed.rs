//! Memory without a name, sealed before anybody else sees it, and its mappings.
//!
//! A file that can be made shorter is a trap: touching a mapped page behind its end is SIGBUS. The
//! seals of a memfd exclude that for ever, and the receiver looks at them before it maps.

use std::os::fd::{AsFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    ftruncate, memfd_create,
};

use crate::error::{Result, ShmError, uninterrupted};

/// The size can neither shrink nor grow, and that can never change.
const FIXED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A mapping that other processes share.
///
/// It stays when the descriptor is closed.
#[derive(Debug)]
pub(crate) struct Memory {
    map: MmapRaw,
}

impl Memory {
    /// Where it begins.
    ///
    /// The bytes up to [`Memory::length`] stay mapped as long as `self` lives.
    pub(crate) fn start(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// How many bytes are mapped.
    pub(crate) fn length(&self) -> usize {
        self.map.len()
    }
}

/// What the pages of new memory do before they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// They are there: a system without memory says so now, and not by ending a process later.
    Reserved,
    /// They come when they are first touched, and only this process can ever write them.
    OnDemandWrittenHere,
}

/// New memory of this many bytes, all zero, mapped for reading and writing; and what to pass to
/// peers.
pub(crate) fn create(name: &str, length: usize, pages: Pages) -> Result<(OwnedFd, Memory)> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(ShmError::system("create a file in memory"))?;
    let size = length as u64;
    ftruncate(&file, size).map_err(ShmError::system("give a file in memory its size"))?;
    if pages == Pages::Reserved {
        reserve(&file, length)?;
    }
    let map = MmapOptions::new().len(length).map_raw(&file);
    let map = map.map_err(ShmError::system("map memory to share"))?;
    let seals = match pages {
        Pages::Reserved => FIXED,
        // The mapping from before stays writable; later ones cannot be.
        Pages::OnDemandWrittenHere => FIXED | SealFlags::FUTURE_WRITE,
    };
    fcntl_add_seals(&file, seals).map_err(ShmError::system("seal memory to share"))?;
    Ok((file, Memory { map }))
}

/// Takes all of the memory from the system: one that has none left says so now, and not by ending a
/// process later.
pub(crate) fn reserve(file: &impl AsFd, length: usize) -> Result<()> {
    uninterrupted(|| fallocate(file, FallocateFlags::empty(), 0, length as u64))
        .map_err(ShmError::system("reserve memory to share"))
}

/// Memory that a peer passed, mapped for reading and writing.
pub(crate) fn open(file: &impl AsFd, length: usize) -> Result<Memory> {
    check(file, length)?;
    let map = MmapOptions::new().len(length).map_raw(&file.as_fd());
    let map = map.map_err(ShmError::system("map the peer's memory"))?;
    Ok(Memory { map })
}

/// Memory that a peer passed, mapped for reading only.
pub(crate) fn open_to_read(file: &impl AsFd, length: usize) -> Result<Memory> {
    check(file, length)?;
    let map = MmapOptions::new()
        .len(length)
        .map_raw_read_only(&file.as_fd());
    let map = map.map_err(ShmError::system("map the peer's memory for reading"))?;
    Ok(Memory { map })
}

/// Whether every access within the length is safe from now on, whatever the peer does.
fn check(file: &impl AsFd, length: usize) -> Result<()> {
    const WHAT: &str = "sealed memory";
    if length == 0 {
        return Err(ShmError::refused(WHAT, "it is said to have no bytes"));
    }
    let seals = fcntl_get_seals(file)
        .map_err(|_| ShmError::refused(WHAT, "it is another kind of file, without seals"))?;
    if !seals.contains(FIXED) {
        let found = format!("its size can change; it has the seals {seals:?} only");
        return Err(ShmError::refused(WHAT, found));
    }
    let status = fstat(file).map_err(ShmError::system("look at the peer's memory"))?;
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
        assert_eq!((mine.length(), theirs.length()), (8192, 8192));
        assert!(ftruncate(&file, 4096).is_err(), "it was made shorter");
    }

    #[test]
    fn memory_that_can_be_made_shorter_is_refused() {
        let file = unsealed(8192);
        assert!(refusal(&file, 8192).contains("its size can change"));
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        // Without the last seal it cannot shrink either, but that is not what was agreed.
        assert!(refusal(&file, 8192).contains("its size can change"));
        fcntl_add_seals(&file, SealFlags::SEAL).unwrap();
        open(&file, 8192).unwrap();
    }

    #[test]
    fn memory_that_is_shorter_than_it_was_said_to_be_is_refused() {
        let file = unsealed(4096);
        fcntl_add_seals(&file, FIXED).unwrap();
        assert!(refusal(&file, 8192).contains("it has 4096 bytes instead of 8192"));
        assert!(refusal(&file, 0).contains("no bytes"));
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
        assert_eq!(theirs.length(), mine.length());
    }
}
