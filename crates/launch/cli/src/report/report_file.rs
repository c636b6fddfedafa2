//! The report file, which is checked before the run begins.
//!
//! A file is never partly written, unlike a pipe or device.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Path to which the report can be written.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
    /// `true` for a pipe or character device, which is not replaced.
    direct: bool,
}

impl ReportFile {
    /// Checks early that the report can be written at the end.
    ///
    /// An existing report stays until then.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = match fs::canonicalize(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            // Links are followed, and the target is replaced.
            found => found?,
        };
        let kind = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?.file_type()),
        };
        let direct = kind.is_some_and(|kind| kind.is_char_device() || kind.is_fifo());
        match kind {
            Some(kind) if kind.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Some(kind) if !kind.is_file() && !direct => {
                return Err(io::Error::other("neither a file nor a pipe"));
            }
            _ => {}
        }
        let file = Self { path, direct };
        if !direct {
            let (temporary, _) = file.temporary()?;
            fs::remove_file(temporary)?;
        }
        Ok(file)
    }

    /// Writes the report to a new file, then renames the file to the path.
    /// A pipe or device is written directly.
    pub(crate) fn write(&self, text: &str) -> io::Result<()> {
        if self.direct {
            // A pipe without a reader must not block the end of the run.
            let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
            let mut file = OpenOptions::new()
                .write(true)
                .custom_flags(nonblocking)
                .open(&self.path)?;
            return file.write_all(text.as_bytes());
        }
        let (temporary, mut file) = self.temporary()?;
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&temporary, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(temporary);
        }
        written
    }

    fn temporary(&self) -> io::Result<(PathBuf, File)> {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let path = self.path.with_file_name(name);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        Ok((path, file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_an_earlier_one_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        fs::write(&path, "earlier").unwrap();
        let file = ReportFile::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");
        file.write("now").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "now");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_known_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let open = |path: &str| ReportFile::open(&directory.path().join(path)).map(|_| ());
        assert_eq!(open(".").unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(
            open("none/report.json").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        ReportFile::open(Path::new("/dev/null"))
            .unwrap()
            .write("x")
            .unwrap();
    }
}
