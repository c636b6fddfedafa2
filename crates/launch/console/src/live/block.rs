//! Lines that stay together: tracebacks.
//!
//! A traceback is written line by line, and several workers usually write theirs at the same time.
//! From its first line on, the lines of its stream form one block, until no further line follows in
//! time, or the block has become too large or too old.

use std::sync::LazyLock;
use std::time::Duration;

use memchr::memmem::Finder;
use rdzv_core::time::Mono;

/// Pause that ends a block whose last line may be its last.
const PAUSE: Duration = Duration::from_millis(100);

/// Pause after which a block ends without the line of the exception.
const LONG_PAUSE: Duration = Duration::from_millis(500);

/// Time after which the next line ends a block in any case.
const LONGEST: Duration = Duration::from_secs(2);

/// Number of bytes after which a block ends.
const LARGEST: usize = 64 << 10;

/// The first line of a traceback.
/// The view searches nearly every line for it, so the search is prepared once.
static FIRST_LINE: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new("Traceback (most recent call last):"));

/// The lines of one stream, in blocks.
#[derive(Debug, Default)]
pub struct Blocks {
    open: Option<Block>,
}

#[derive(Debug)]
struct Block {
    /// Lines, separated by `\n`.
    text: Vec<u8>,
    /// Text before the first word of each line, such as `[rank0]: `.
    prefix: Vec<u8>,
    begun: Mono,
    last: Mono,
    /// `true` if the last line may be the one with the exception.
    is_whole: bool,
}

impl Blocks {
    /// Adds a line, and emits complete text.
    /// The text is one line, or several lines with `\n` between them.
    pub fn push(&mut self, line: &[u8], now: Mono, emit: &mut dyn FnMut(&[u8])) {
        let Some(block) = &mut self.open else {
            match FIRST_LINE.find(line) {
                Some(at) => {
                    self.open = Some(Block {
                        text: line.to_vec(),
                        prefix: line[..at].to_vec(),
                        begun: now,
                        last: now,
                        is_whole: false,
                    });
                }
                None => emit(line),
            }
            return;
        };
        block.text.push(b'\n');
        block.text.extend_from_slice(line);
        block.last = now;
        let rest = line.strip_prefix(&block.prefix[..]).unwrap_or(line);
        let is_inside = |byte: &u8| byte.is_ascii_whitespace();
        block.is_whole =
            rest.first().is_some_and(|first| !is_inside(first)) && FIRST_LINE.find(line).is_none();
        if block.text.len() > LARGEST || now.since(block.begun) > LONGEST {
            self.finish(emit);
        }
    }

    /// Returns the time at which the open block is complete without further lines.
    pub fn deadline(&self) -> Option<Mono> {
        let block = self.open.as_ref()?;
        Some(block.last + if block.is_whole { PAUSE } else { LONG_PAUSE })
    }

    /// Emits a block whose pause has ended.
    pub fn pass(&mut self, now: Mono, emit: &mut dyn FnMut(&[u8])) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.finish(emit);
        }
    }

    /// Emits a block that need not wait for another line.
    pub fn finish_whole(&mut self, emit: &mut dyn FnMut(&[u8])) {
        if self.open.as_ref().is_some_and(|block| block.is_whole) {
            self.finish(emit);
        }
    }

    /// Emits the rest.
    pub fn finish(&mut self, emit: &mut dyn FnMut(&[u8])) {
        if let Some(block) = self.open.take() {
            emit(&block.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(blocks: &mut Blocks, lines: &[&str], now: Mono) -> Vec<String> {
        let mut emitted = Vec::new();
        for line in lines {
            blocks.push(line.as_bytes(), now, &mut |block| {
                emitted.push(String::from_utf8(block.to_vec()).unwrap());
            });
        }
        emitted
    }

    #[test]
    fn a_traceback_is_one_block() {
        let (mut blocks, now) = (Blocks::default(), Mono::ZERO);
        assert_eq!(push(&mut blocks, &["before"], now), ["before"]);
        let lines = [
            "[rank0]: Traceback (most recent call last):",
            "[rank0]:   File \"a.py\", line 1, in <module>",
            "[rank0]: KeyError: 1",
            "",
            "[rank0]: During handling of the above exception, another exception occurred:",
            "[rank0]: Traceback (most recent call last):",
            "[rank0]:   File \"a.py\", line 3, in <module>",
        ];
        assert!(push(&mut blocks, &lines, now).is_empty());
        assert_eq!(blocks.deadline(), Some(now + LONG_PAUSE));
        assert!(push(&mut blocks, &["[rank0]: ValueError: 2"], now).is_empty());
        assert_eq!(blocks.deadline(), Some(now + PAUSE));
        let mut emitted = Vec::new();
        blocks.pass(now, &mut |_| panic!("the pause of the block is not over"));
        blocks.pass(now + PAUSE, &mut |block| emitted.extend_from_slice(block));
        let whole = format!("{}\n[rank0]: ValueError: 2", lines.join("\n"));
        assert_eq!(String::from_utf8(emitted).unwrap(), whole);
        assert_eq!(push(&mut blocks, &["after"], now), ["after"]);
    }

    #[test]
    fn a_block_without_an_end_ends() {
        let (mut blocks, now) = (Blocks::default(), Mono::ZERO);
        push(&mut blocks, &["Traceback (most recent call last):"], now);
        assert!(push(&mut blocks, &["  a"], now + LONGEST).is_empty());
        let after = now + LONGEST + Duration::from_millis(1);
        assert_eq!(push(&mut blocks, &["  b"], after).len(), 1);
        assert_eq!(blocks.deadline(), None);
    }
}
