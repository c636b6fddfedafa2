//! Assembly of a stream of bytes into whole lines.
//!
//! `\n`, `\r\n` and a lone `\r` end a line. Bytes that are not UTF-8 become U+FFFD. The beginning
//! of a line is buffered until its end arrives, unless the line is too long or the caller flushes
//! it.

use std::borrow::Cow;

use memchr::memchr2;

/// Length beyond which an unfinished line is emitted in pieces.
pub(super) const LONGEST_LINE: usize = 64 << 10;

/// Capacity of the buffer that stays allocated between lines.
const IDLE_CAPACITY: usize = 4 << 10;

#[derive(Debug, Default)]
pub(super) struct LineAssembler {
    /// Beginning of an unfinished line, without the part that was emitted.
    pending: Vec<u8>,
    /// Part of the current line that was already emitted, if any.
    begun: Option<Vec<u8>>,
    /// `true` if the last byte was `\r`; a `\n` that follows belongs to it.
    after_return: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Piece<'a> {
    /// Clean text without the end of the line.
    pub(super) text: &'a [u8],
    /// Part of the line that was emitted before, if any.
    /// It is empty if it is too long to repeat.
    pub(super) begun: Option<&'a [u8]>,
    /// `true` if the line ends here.
    pub(super) ended: bool,
}

impl LineAssembler {
    /// Returns `true` if the beginning of a line is buffered.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns `true` if the beginning of a line was emitted, but not its end.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Adds bytes and emits all lines that they complete.
    /// Also emits lines that are too long to be buffered.
    pub(super) fn take(&mut self, mut bytes: &[u8], mut emit: impl FnMut(Piece<'_>)) {
        if self.after_return && !bytes.is_empty() {
            self.after_return = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        let clean = str::from_utf8(bytes).is_ok();
        while let Some(end) = memchr2(b'\n', b'\r', bytes) {
            let begun = self.begun.take();
            let begun = begun.as_deref();
            let mut emit_text = |text: &[u8]| {
                emit(Piece {
                    text,
                    begun,
                    ended: true,
                });
            };
            if !self.pending.is_empty() {
                self.pending.extend_from_slice(&bytes[..end]);
                emit_text(&cleaned(&self.pending));
                self.pending.clear();
                self.pending.shrink_to(IDLE_CAPACITY);
            } else if clean {
                emit_text(&bytes[..end]);
            } else {
                emit_text(&cleaned(&bytes[..end]));
            }
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
        if self.pending.len() > LONGEST_LINE {
            self.flush(emit);
        }
    }

    /// Emits the beginning of a line whose end does not arrive.
    /// The first bytes of an incomplete character stay in the buffer.
    pub(super) fn flush(&mut self, mut emit: impl FnMut(Piece<'_>)) {
        let complete = complete_length(&self.pending);
        if complete == 0 {
            return;
        }
        let text = cleaned(&self.pending[..complete]);
        emit(Piece {
            text: &text,
            begun: self.begun.as_deref(),
            ended: false,
        });
        self.begun = Some(match self.begun.take() {
            None if text.len() <= LONGEST_LINE => text.into_owned(),
            Some(mut begun) if !begun.is_empty() && begun.len() + text.len() <= LONGEST_LINE => {
                begun.extend_from_slice(&text);
                begun
            }
            _ => Vec::new(),
        });
        self.pending.drain(..complete);
        self.pending.shrink_to(IDLE_CAPACITY);
    }

    /// Ends the last line, if it has no end.
    pub(super) fn finish(&mut self, emit: impl FnMut(Piece<'_>)) {
        if self.has_pending() || self.has_begun() {
            self.take(b"\n", emit);
        }
    }
}

fn cleaned(text: &[u8]) -> Cow<'_, [u8]> {
    match String::from_utf8_lossy(text) {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// Returns the number of bytes without an incomplete character at the end.
fn complete_length(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last();
    let rest = last.map_or(&[][..], |chunk| chunk.invalid());
    match str::from_utf8(rest) {
        Err(error) if error.error_len().is_none() => bytes.len() - rest.len(),
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the output: `+` before the continuation of a line, `$` at an end.
    fn note(shown: &mut String) -> impl FnMut(Piece<'_>) {
        |piece| {
            let text = str::from_utf8(piece.text).expect("clean text");
            let (begun, ended) = (piece.begun.is_some(), piece.ended);
            *shown += &format!(
                "{}{text}{}",
                ["", "+"][usize::from(begun)],
                ["|", "$"][usize::from(ended)]
            );
        }
    }

    /// Returns the output for these pieces.
    fn out_of(pieces: &[&[u8]]) -> String {
        let (mut lines, mut shown) = (LineAssembler::default(), String::new());
        for piece in pieces {
            lines.take(piece, note(&mut shown));
        }
        lines.finish(note(&mut shown));
        shown
    }

    #[test]
    fn lines_are_whole_whatever_the_pieces() {
        let text = "a\r\nb\rc\n\nä\u{1f600}end".as_bytes();
        let expected = "a$b$c$$ä\u{1f600}end$";
        assert_eq!(out_of(&[text]), expected);
        for at in 0..text.len() {
            assert_eq!(out_of(&[&text[..at], &text[at..]]), expected, "cut at {at}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(out_of(&bytes), expected);
    }

    #[test]
    fn bad_bytes_are_replaced() {
        assert_eq!(out_of(&[b"a\xffb\nok\n"]), "a\u{fffd}b$ok$");
        assert_eq!(out_of(&[b"a\xc3", b"\nx"]), "a\u{fffd}$x$");
    }

    #[test]
    fn the_rest_of_a_line_that_was_begun_says_so() {
        let (mut lines, mut shown) = (LineAssembler::default(), String::new());
        lines.take("half \u{e4}".as_bytes(), note(&mut shown));
        lines.take(b"\xe2\x82", note(&mut shown));
        lines.flush(note(&mut shown));
        assert_eq!(shown, "half \u{e4}|");
        assert!(lines.has_begun() && lines.has_pending(), "half a character");
        lines.take(b"\xac done\nnext\n", note(&mut shown));
        assert_eq!(shown, "half \u{e4}|+\u{20ac} done$next$");
        assert!(!lines.has_begun());
    }

    #[test]
    fn what_was_begun_can_be_repeated_unless_it_is_long() {
        let mut lines = LineAssembler::default();
        let mut begun = Vec::new();
        let mut take = |lines: &mut LineAssembler, text: &[u8]| {
            let mut note = |piece: Piece<'_>| begun.push(piece.begun.map(<[u8]>::to_vec));
            lines.take(text, &mut note);
            lines.flush(&mut note);
        };
        take(&mut lines, b"a");
        take(&mut lines, b"b");
        take(&mut lines, b"c\n");
        take(&mut lines, &[b'x'; LONGEST_LINE]);
        take(&mut lines, b"y");
        take(&mut lines, b"z\n");
        let some = |text: &[u8]| Some(text.to_vec());
        let long = Some(vec![b'x'; LONGEST_LINE]);
        assert_eq!(
            begun,
            [None, some(b"a"), some(b"ab"), None, long, some(b"")]
        );
    }

    #[test]
    fn an_endless_line_is_held_up_to_a_limit_only() {
        let (mut lines, mut shown, mut held) = (LineAssembler::default(), String::new(), 0);
        for _ in 0..100 {
            lines.take(&[b'x'; 5000], note(&mut shown));
            held = held.max(lines.pending.capacity());
        }
        lines.finish(note(&mut shown));
        assert!(held <= 2 * (LONGEST_LINE + 5000), "{held}");
        assert_eq!(shown.matches('x').count(), 500_000);
        assert_eq!(shown.matches('$').count(), 1);
        assert!(shown.matches('|').count() >= 6);
    }
}
