//! The end of a stream that goes neither to the console nor to a log.
//!
//! `--local-ranks-filter` takes workers off the console; where nobody asked for their output in a
//! file either, it would be lost, and with it the reason of a failure. So they write into a file
//! whose beginning is given back to the file system while it grows: a worker that writes straight
//! into a file is never held up, and about [`KEEP`] bytes of it stay.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rdzv_core::rank::LocalRank;
use rustix::fs::{FallocateFlags, fallocate};
use tracing::debug;

use super::source::TailedFile;

/// How much of the end is kept, in bytes.
pub(super) const KEEP: u64 = 64 << 10;

/// How often a file that grows is looked at. What a worker writes meanwhile takes disk space.
const LOOK_AFTER: Duration = Duration::from_millis(250);

/// A file of which only the end is kept.
#[derive(Debug)]
pub(super) struct KeptFile {
    /// Whose.
    pub(super) local_rank: LocalRank,
    /// How it is shown if its worker fails.
    pub(super) shown: TailedFile,
    /// For giving back.
    file: File,
    given_back: u64,
    look_at: Option<Instant>,
    /// The file system cannot give back a part of a file.
    refused: bool,
}

impl KeptFile {
    pub(super) fn new(local_rank: LocalRank, shown: TailedFile) -> io::Result<Self> {
        Ok(Self {
            local_rank,
            file: OpenOptions::new().write(true).open(&shown.path)?,
            shown,
            given_back: 0,
            look_at: None,
            refused: false,
        })
    }

    /// It has grown.
    pub(super) fn changed(&mut self, now: Instant) {
        if !self.refused {
            self.look_at.get_or_insert(now + LOOK_AFTER);
        }
    }

    /// When [`KeptFile::trim`] is due.
    pub(super) fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// Gives back what is not kept.
    pub(super) fn trim(&mut self) {
        self.look_at = None;
        let length = self.file.metadata().map_or(0, |held| held.len());
        // A file system gives back whole blocks only.
        let until = length.saturating_sub(KEEP) / KEEP * KEEP;
        if until < self.given_back + KEEP {
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, self.given_back, until - self.given_back) {
            Ok(()) => self.given_back = until,
            Err(errno) => {
                debug!("{} is kept whole: {errno}", self.shown.path.display());
                self.refused = true;
            }
        }
    }

    /// Nobody writes any more: leaves a file that holds the end and nothing else.
    ///
    /// It is another file, which takes the place of the first: who reads that one goes on.
    pub(super) fn finish(mut self) -> Self {
        let length = self.shown.file.metadata().map_or(0, |held| held.len());
        if length > KEEP {
            match shorten(&self.shown.path, &self.shown.file) {
                Ok(file) => self.shown.file = file,
                // The hole stays, and is skipped by whoever shows the file.
                Err(error) => debug!("{} stays as it is: {error}", self.shown.path.display()),
            }
        }
        self
    }
}

/// Replaces a file by its end. Returns the new one, open for reading at its beginning.
fn shorten(path: &Path, file: &File) -> io::Result<File> {
    let length = file.metadata()?.len();
    let start = length.saturating_sub(KEEP);
    let mut end = vec![0; usize::try_from(length - start).unwrap_or_default()];
    file.read_exact_at(&mut end, start)?;
    let cut = memchr::memchr(b'\n', &end).map_or(0, |at| at + 1);
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let written = File::create(&new).and_then(|mut file| {
        let lost = start + cut as u64;
        writeln!(file, "(the first {lost} bytes were not kept)")?;
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
    use rdzv_core::rank::{Rank, RoleRank};

    use super::super::console::Target;
    use super::*;

    fn kept(path: &Path) -> KeptFile {
        let shown = TailedFile {
            path: path.to_owned(),
            file: File::open(path).unwrap(),
            target: Target::Stderr,
            place: WorkerRanks {
                local_rank: LocalRank(0),
                rank: Rank(0),
                world_size: 1,
                role_rank: RoleRank(0),
                role_world_size: 1,
            },
            prefix: String::new(),
            needles: Vec::new(),
            filtered: None,
        };
        KeptFile::new(LocalRank(0), shown).unwrap()
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
        let mut kept = kept(&path);
        let line = "x".repeat(99) + "\n";
        for _ in 0..100 {
            writer.write_all(line.repeat(1000).as_bytes()).unwrap();
            kept.trim();
        }
        if !kept.refused {
            let on_disk = path.metadata().unwrap().blocks() * 512;
            assert!(on_disk < 4 * KEEP, "{on_disk}");
        }
        let kept = kept.finish();
        let text = fs::read_to_string(&path).unwrap();
        if !kept.refused {
            let (note, rest) = text.split_once('\n').unwrap();
            assert_eq!(
                note,
                format!(
                    "(the first {} bytes were not kept)",
                    10_000_000 - rest.len()
                )
            );
            assert!(rest.len() as u64 <= KEEP && rest.len() as u64 > KEEP - 200);
            assert!(rest.lines().all(|kept| kept == line.trim_end()));
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn short_output_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept_stderr.log");
        fs::write(&path, "one\ntwo\n").unwrap();
        let mut kept = kept(&path);
        kept.trim();
        kept.finish();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }
}
