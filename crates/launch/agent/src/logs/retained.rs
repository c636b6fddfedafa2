//! End of a stream that goes neither to the console nor to a log.
//!
//! `--local-ranks-filter` hides workers from the console. Without a log file their output would be
//! lost, and with it the reason of a failure. Such workers therefore write into a file. While the
//! file grows, rdzv releases its beginning, if the file system can do that. A worker that writes
//! directly into a file is never blocked, and about [`RETAINED`] bytes of the file stay.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use tracing::debug;

use super::log_reader::LogReader;

pub(super) const RETAINED: u64 = 64 << 10;

/// Delay before a growing file is trimmed; until then it uses disk space.
const TRIM_AFTER: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct RetainedFile {
    /// Reader that copies the file to the console if its worker fails.
    pub(super) reader: LogReader,
    /// File handle that releases the beginning.
    file: File,
    released: u64,
    pub(super) trim_at: Option<Instant>,
    /// `true` if the file system cannot release a part of a file.
    refused: bool,
}

impl RetainedFile {
    pub(super) fn new(reader: LogReader) -> io::Result<Self> {
        Ok(Self {
            file: OpenOptions::new().write(true).open(&reader.path)?,
            reader,
            released: 0,
            trim_at: None,
            refused: false,
        })
    }

    pub(super) fn changed(&mut self, now: Instant) {
        if !self.refused {
            self.trim_at.get_or_insert(now + TRIM_AFTER);
        }
    }

    /// Releases the part that is not retained.
    pub(super) fn trim(&mut self) {
        self.trim_at = None;
        let length = self.file.metadata().map_or(0, |metadata| metadata.len());
        // A file system releases only whole blocks.
        let end = length.saturating_sub(RETAINED) / RETAINED * RETAINED;
        if end < self.released + RETAINED {
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, self.released, end - self.released) {
            Ok(()) => self.released = end,
            Err(errno) => {
                debug!(
                    "cannot limit the size of {}: {errno}",
                    self.reader.path.display()
                );
                self.refused = true;
            }
        }
    }

    /// Shortens the file to the retained end, after all writers have exited.
    ///
    /// A new file replaces the first one. A reader of the first one can continue.
    pub(super) fn finish(self) -> LogReader {
        let mut reader = self.reader;
        let length = reader.file.metadata().map_or(0, |file| file.len());
        if length > RETAINED {
            match shorten(&reader.path, &reader.file) {
                Ok(file) => reader.file = file,
                // The hole stays, and reads as zeros.
                Err(error) => debug!("cannot shorten {}: {error}", reader.path.display()),
            }
        }
        reader
    }
}

/// Replaces a file by its end.
/// Returns the new file, open for reading at its beginning.
fn shorten(path: &Path, file: &File) -> io::Result<File> {
    let length = file.metadata()?.len();
    let start = length.saturating_sub(RETAINED);
    let mut end = vec![0; usize::try_from(length - start).unwrap_or_default()];
    file.read_exact_at(&mut end, start)?;
    let cut = memchr::memchr(b'\n', &end).map_or(0, |at| at + 1);
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let written = File::create(&new).and_then(|mut file| {
        let lost = start + cut as u64;
        writeln!(file, "(the first {lost} bytes were not retained)")?;
        file.write_all(&end[cut..])?;
        fs::rename(&new, path)?;
        File::open(path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use rdzv_agent_proto::group::WorkerRanks;
    use rdzv_core::rank::{LocalRank, Rank, RoleRank};

    use super::super::console::Target;
    use super::super::filter::Filter;
    use super::super::output::LogStream;
    use super::*;

    fn retained(path: &Path) -> RetainedFile {
        let stream = LogStream {
            id: 0,
            target: Target::Stderr,
            ranks: WorkerRanks {
                local_rank: LocalRank(0),
                rank: Rank(0),
                world_size: 1,
                role_rank: RoleRank(0),
                role_world_size: 1,
            },
            prefix: Vec::new(),
        };
        let reader = LogReader::open(path, stream, Filter::new(&[], None)).unwrap();
        RetainedFile::new(reader).unwrap()
    }

    #[test]
    fn of_a_flood_only_the_end_takes_space_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept_stderr.log");
        let mut writer = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap();
        let mut retained = retained(&path);
        let line = "x".repeat(99) + "\n";
        for _ in 0..100 {
            writer.write_all(line.repeat(1000).as_bytes()).unwrap();
            retained.trim();
        }
        if !retained.refused {
            let on_disk = path.metadata().unwrap().blocks() * 512;
            assert!(on_disk < 4 * RETAINED, "{on_disk}");
        }
        let refused = retained.refused;
        retained.finish();
        let text = fs::read_to_string(&path).unwrap();
        if !refused {
            let (note, rest) = text.split_once('\n').unwrap();
            assert_eq!(
                note,
                format!(
                    "(the first {} bytes were not retained)",
                    10_000_000 - rest.len()
                )
            );
            assert!(rest.len() as u64 <= RETAINED && rest.len() as u64 > RETAINED - 200);
            assert!(rest.lines().all(|kept| kept == line.trim_end()));
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn short_output_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept_stderr.log");
        fs::write(&path, "one\ntwo\n").unwrap();
        let mut retained = retained(&path);
        retained.trim();
        retained.finish();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }
}
