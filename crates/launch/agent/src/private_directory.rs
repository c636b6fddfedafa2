//! Directories that only this user can open.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Creates a directory `⟨name⟩_⟨8 random characters⟩` for this user only.
pub(crate) fn unique(base: &Path, name: &str) -> io::Result<PathBuf> {
    loop {
        let random: String = std::iter::repeat_with(|| fastrand::char('0'..='z'))
            .filter(|letter| letter.is_ascii_digit() || letter.is_ascii_lowercase())
            .take(8)
            .collect();
        let path = base.join(format!("{name}_{random}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path),
        }
    }
}
