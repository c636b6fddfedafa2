//! Cuts a stream of bytes into whole lines with prefixes.
//!
//! `\n`, `\r\n` and a lone `\r` end a line. What is not UTF-8 becomes U+FFFD. The end of a line
//! that has not come yet is held back.

use std::borrow::Cow;

use memchr::memchr2;

/// More than this without an end is given out in pieces: a line is held in memory.
pub(super) const LONGEST_LINE: usize = 256 << 10;

/// The lines of one stream.
#[derive(Debug)]
pub(super) struct Lines {
    prefix: Vec<u8>,
    /// The beginning of a line whose end has not come yet.
    pending: Vec<u8>,
    /// The last byte was `\r`; a `\n` that follows belongs to it.
    after_return: bool,
}

/// A finished piece of output, for those who look at lines.
pub(super) trait LineReader {
    /// A whole line with prefix and newline.
    fn line(&mut self, line: &[u8]);
}

impl Lines {
    pub(super) fn new(prefix: String) -> Self {
        Self {
            prefix: prefix.into_bytes(),
            pending: Vec::new(),
            after_return: false,
        }
    }

    /// Whether the beginning of a line is being held back.
    pub(super) fn holds_back(&self) -> bool {
        !self.pending.is_empty()
    }

    /// How much would be held back if so many bytes without an end came.
    pub(super) fn held_with(&self, more: usize) -> usize {
        self.pending.len() + more
    }

    /// Takes bytes and appends all lines that they complete to `out`. If `open`, the beginning of
    /// the current line is on the console already.
    pub(super) fn take(
        &mut self,
        mut bytes: &[u8],
        open: &mut bool,
        out: &mut Vec<u8>,
        reader: &mut dyn LineReader,
    ) {
        if self.after_return && !bytes.is_empty() {
            self.after_return = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        let clean = str::from_utf8(bytes).is_ok();
        while let Some(end) = memchr2(b'\n', b'\r', bytes) {
            let start = out.len();
            if !*open {
                out.extend_from_slice(&self.prefix);
            }
            *open = false;
            if self.pending.is_empty() {
                append(out, &bytes[..end], clean);
            } else {
                self.pending.extend_from_slice(&bytes[..end]);
                append(out, &self.pending, false);
                self.pending.clear();
            }
            out.push(b'\n');
            reader.line(&out[start..]);
            let returned = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if returned {
                match bytes.first() {
                    Some(b'\n') => bytes = &bytes[1..],
                    Some(_) => {}
                    None => self.after_return = true,
                }
            }
        }
        self.pending.extend_from_slice(bytes);
    }

    /// Gives out the beginning of a line whose end does not come, except for the first bytes of a
    /// character that is not complete.
    pub(super) fn give_out(&mut self, open: &mut bool, out: &mut Vec<u8>) {
        let complete = complete_length(&self.pending);
        if complete == 0 {
            return;
        }
        if !*open {
            out.extend_from_slice(&self.prefix);
        }
        append(out, &self.pending[..complete], false);
        self.pending.drain(..complete);
        *open = true;
    }

    /// Ends the last line, if it has no end.
    pub(super) fn finish(
        &mut self,
        open: &mut bool,
        out: &mut Vec<u8>,
        reader: &mut dyn LineReader,
    ) {
        if self.holds_back() || *open {
            self.take(b"\n", open, out, reader);
        }
    }
}

fn append(out: &mut Vec<u8>, text: &[u8], clean: bool) {
    if clean {
        out.extend_from_slice(text);
    } else {
        match String::from_utf8_lossy(text) {
            Cow::Borrowed(text) => out.extend_from_slice(text.as_bytes()),
            Cow::Owned(text) => out.extend_from_slice(text.as_bytes()),
        }
    }
}

/// How many of the bytes do not belong to a character whose end is still missing.
fn complete_length(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    for start in (tail..bytes.len()).rev() {
        let needed = match bytes[start] {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => return bytes.len(),
        };
        return if bytes.len() - start < needed {
            start
        } else {
            bytes.len()
        };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl LineReader for Vec<String> {
        fn line(&mut self, line: &[u8]) {
            self.push(String::from_utf8(line.to_vec()).unwrap());
        }
    }

    /// What comes out if the pieces come in one after the other.
    fn out_of(pieces: &[&[u8]]) -> String {
        let mut lines = Lines::new("[0]:".into());
        let (mut open, mut out, mut seen) = (false, Vec::new(), Vec::<String>::new());
        for piece in pieces {
            lines.take(piece, &mut open, &mut out, &mut seen);
        }
        lines.finish(&mut open, &mut out, &mut seen);
        assert_eq!(seen.concat().as_bytes(), out, "readers see what goes out");
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_whole_whatever_the_pieces() {
        let text = "a\r\nb\rc\n\nä\u{1f600}end".as_bytes();
        let expected = "[0]:a\n[0]:b\n[0]:c\n[0]:\n[0]:ä\u{1f600}end\n";
        assert_eq!(out_of(&[text]), expected);
        for at in 0..text.len() {
            assert_eq!(out_of(&[&text[..at], &text[at..]]), expected, "cut at {at}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(out_of(&bytes), expected);
    }

    #[test]
    fn bad_bytes_are_replaced() {
        assert_eq!(out_of(&[b"a\xffb\nok\n"]), "[0]:a\u{fffd}b\n[0]:ok\n");
        assert_eq!(out_of(&[b"a\xc3", b"\nx"]), "[0]:a\u{fffd}\n[0]:x\n");
    }

    #[test]
    fn a_beginning_that_is_given_out_gets_no_second_prefix() {
        let mut lines = Lines::new("[0]:".into());
        let (mut open, mut out, mut seen) = (false, Vec::new(), Vec::<String>::new());
        lines.take("half \u{e4}".as_bytes(), &mut open, &mut out, &mut seen);
        lines.take(b"\xe2\x82", &mut open, &mut out, &mut seen);
        lines.give_out(&mut open, &mut out);
        assert_eq!(out, "[0]:half \u{e4}".as_bytes());
        assert!(open && lines.holds_back());
        lines.take(b"\xac done\n", &mut open, &mut out, &mut seen);
        assert_eq!(out, "[0]:half \u{e4}\u{20ac} done\n".as_bytes());
        assert!(!open);
    }
}
