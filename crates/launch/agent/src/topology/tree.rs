//! Files below a root, which is `/` except in tests.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use rdzv_agent_proto::topology::CpuList;

use super::PlacementError;

/// Limit on the size of a file; larger than any file that is read here.
/// The largest one is `mountinfo` of a host with many containers.
const MOST: u64 = 4 << 20;

#[derive(Debug, Clone)]
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns a file's text without surrounding blanks; `None` if unreadable.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let mut bytes = Vec::new();
        let file = fs::File::open(self.at(path.as_ref())).ok()?;
        file.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns the number in a file; `None` if there is no number.
    pub(super) fn number(&self, path: impl AsRef<Path>) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// Returns the list of processors or nodes in a file.
    /// `None` if there is no such file.
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Result<Option<CpuList>, PlacementError> {
        let path = path.as_ref();
        let unreadable = |problem: String| PlacementError::Unreadable {
            path: path.display().to_string(),
            problem,
        };
        match fs::read_to_string(self.at(path)) {
            Ok(text) => CpuList::parse(&text)
                .map(Some)
                .map_err(|error| unreadable(error.to_string())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(error.to_string())),
        }
    }

    /// Returns the sorted names in a directory; empty if there is no directory.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.at(path.as_ref()));
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}
