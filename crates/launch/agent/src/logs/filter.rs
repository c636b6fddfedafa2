//! Copies of the lines that contain certain texts.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use memchr::memmem;
use tracing::warn;

use super::line_assembler::{LONGEST_LINE, Piece};

#[derive(Debug)]
pub(super) struct FilteredLog {
    pub(super) path: PathBuf,
    pub(super) file: File,
}

/// Filter of the lines of one source.
#[derive(Debug)]
pub(super) struct Filter {
    needles: Vec<memmem::Finder<'static>>,
    log: Option<FilteredLog>,
    /// Beginning of the current line.
    line: Vec<u8>,
    batch: Vec<u8>,
}

impl Filter {
    pub(super) fn new(needles: &[String], log: Option<FilteredLog>) -> Self {
        Self {
            needles: needles
                .iter()
                .map(|needle| memmem::Finder::new(needle).into_owned())
                .collect(),
            log,
            line: Vec::new(),
            batch: Vec::new(),
        }
    }

    /// Adds a piece; the filter matches its line together with the prefix.
    pub(super) fn feed(&mut self, prefix: &[u8], piece: Piece<'_>) {
        if self.log.is_none() {
            return;
        }
        if piece.begun.is_none() {
            self.line.clear();
            self.line.extend_from_slice(prefix);
        }
        if self.line.len() <= LONGEST_LINE {
            self.line.extend_from_slice(piece.text);
        }
        if piece.ended {
            self.line.push(b'\n');
            let line = &self.line;
            if self
                .needles
                .iter()
                .any(|needle| needle.find(line).is_some())
            {
                self.batch.extend_from_slice(line);
            }
            self.line.clear();
            self.line.shrink_to(LONGEST_LINE);
        }
    }

    /// Writes the lines that matched.
    pub(super) fn write(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if let Some(log) = &mut self.log
            && let Err(error) = log.file.write_all(&self.batch)
        {
            // The run continues without the copy; the line itself is in the worker's own file.
            warn!(
                "cannot write {}: {error}; no more lines of this worker are copied to this file",
                log.path.display()
            );
            self.log = None;
        }
        self.batch.clear();
        self.batch.shrink_to(LONGEST_LINE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(path: &str) -> FilteredLog {
        FilteredLog {
            path: path.into(),
            file: File::options()
                .append(true)
                .create(true)
                .open(path)
                .unwrap(),
        }
    }

    #[test]
    fn a_line_that_comes_in_pieces_counts_as_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("filtered_stdout.log");
        let path = path.to_str().unwrap();
        let mut filter = Filter::new(&["a b".into()], Some(log(path)));
        for (text, begun, ended) in [
            ("x", None, true),
            ("a", None, false),
            (" b", Some("a"), true),
            ("b", None, true),
        ] {
            let (text, begun) = (text.as_bytes(), begun.map(str::as_bytes));
            filter.feed(b"[0]:", Piece { text, begun, ended });
        }
        filter.write();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "[0]:a b\n");
    }

    #[test]
    fn a_full_disk_ends_the_copies_and_nothing_else() {
        let mut filter = Filter::new(&[String::new()], Some(log("/dev/full")));
        let piece = Piece {
            text: b"x",
            begun: None,
            ended: true,
        };
        for _ in 0..2 {
            filter.feed(b"", piece);
            filter.write();
            assert!(filter.log.is_none() && filter.batch.is_empty());
        }
    }
}
