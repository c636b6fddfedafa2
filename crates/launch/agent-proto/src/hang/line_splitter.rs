//! Splits the bytes of a named pipe into lines.

/// Longest accepted line in bytes, without its line feed.
/// The kernel writes this much atomically (`PIPE_BUF`).
pub const LONGEST_LINE: usize = 4096;

/// A line of the input, or a report that one was too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitLine {
    /// A line without its line feed.
    Whole(Vec<u8>),
    /// A line longer than [`LONGEST_LINE`], dropped up to its end.
    /// Reported once per line.
    TooLong,
}

/// Assembles lines from chunks. Buffers at most one line.
#[derive(Debug, Default)]
pub struct LineSplitter {
    begun: Vec<u8>,
    dropping: bool,
}

impl LineSplitter {
    /// Adds a chunk and returns the lines that it completes, in order.
    pub fn feed(&mut self, piece: &[u8]) -> Vec<SplitLine> {
        let mut lines = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let (text, ended) = match part.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (part, false),
            };
            if !self.dropping {
                if self.begun.len() + text.len() > LONGEST_LINE {
                    self.dropping = true;
                    self.begun = Vec::new();
                    lines.push(SplitLine::TooLong);
                } else {
                    self.begun.extend_from_slice(text);
                }
            }
            if ended {
                let whole = std::mem::take(&mut self.begun);
                if !std::mem::take(&mut self.dropping) {
                    lines.push(SplitLine::Whole(whole));
                }
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> SplitLine {
        SplitLine::Whole(text.as_bytes().to_vec())
    }

    #[test]
    fn lines_come_out_whole_however_they_are_cut() {
        let text = b"one\n\ntwo\nthree";
        for cut in 0..text.len() {
            let mut lines = LineSplitter::default();
            let mut found = lines.feed(&text[..cut]);
            found.extend(lines.feed(&text[cut..]));
            assert_eq!(found, [whole("one"), whole(""), whole("two")], "{cut}");
            assert_eq!(lines.feed(b"\n"), [whole("three")]);
        }
    }

    #[test]
    fn a_line_without_end_is_dropped_and_the_next_one_is_taken() {
        let mut lines = LineSplitter::default();
        let longest = vec![b'x'; LONGEST_LINE];
        assert_eq!(lines.feed(&longest), []);
        assert_eq!(lines.feed(b"\n"), [SplitLine::Whole(longest.clone())]);
        assert_eq!(lines.feed(&longest), []);
        assert_eq!(lines.feed(b"x"), [SplitLine::TooLong]);
        for _ in 0..100 {
            assert_eq!(lines.feed(&longest), []);
            assert!(lines.begun.capacity() <= LONGEST_LINE);
        }
        assert_eq!(lines.feed(b"end\nnext\n"), [whole("next")]);
    }
}
