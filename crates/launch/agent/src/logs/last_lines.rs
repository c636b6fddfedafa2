//! Last lines of a worker's stream.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use rdzv_core::escape::escape_bytes;

/// Number of bytes that are read from the end of a file.
const FURTHEST: u64 = 64 << 10;

/// Number of bytes that are searched for the beginning of a longer last line.
const LONGEST_LINE: u64 = 4 << 20;

/// Number of bytes to return from the beginning of such a line.
const BEGINNING_OF_LINE: u64 = 4 << 10;

/// Returns the last lines of a file, at most `most`, without their ends.
/// They come from the last 64 KiB. If the last line alone is longer, and its beginning is within
/// reach, the result is that beginning and the lines before it.
pub(super) fn read(path: &Path, most: usize) -> io::Result<Vec<String>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(FURTHEST);
    let bytes = part(&file, start, length)?;
    if start > 0
        && memchr::memchr(b'\n', bytes.trim_ascii_end()).is_none()
        && let Some(begin) = begin_of_line(&file, start)?
    {
        let start = begin.saturating_sub(FURTHEST);
        let mut bytes = part(&file, start, begin + BEGINNING_OF_LINE)?;
        bytes.extend("…".bytes());
        return Ok(last_lines(&bytes, start > 0, most));
    }
    Ok(last_lines(&bytes, start > 0, most))
}

/// Returns the beginning of the line at a position.
/// `None` if the beginning is too far away.
fn begin_of_line(file: &File, position: u64) -> io::Result<Option<u64>> {
    let furthest = position.saturating_sub(LONGEST_LINE);
    let mut end = position;
    while end > furthest {
        let start = end.saturating_sub(FURTHEST).max(furthest);
        if let Some(found) = memchr::memrchr(b'\n', &part(file, start, end)?) {
            return Ok(Some(start + found as u64 + 1));
        }
        end = start;
    }
    Ok((furthest == 0).then_some(0))
}

/// Returns the bytes between two positions; fewer if the file became shorter.
fn part(mut file: &File, start: u64, end: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(start))?;
    file.take(end - start).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the last lines of a text; `cut` if there was more text before.
///
/// Text that a `\r` overwrites is left out, as on a terminal: only the last state of a progress bar
/// is useful. Invalid UTF-8 becomes U+FFFD, and control characters become escapes. Empty lines at
/// the end are dropped.
pub(super) fn last_lines(mut bytes: &[u8], cut: bool, most: usize) -> Vec<String> {
    if cut {
        // A hole reads as zeros, and the first line is rarely complete.
        let hole = bytes.iter().take_while(|&&byte| byte == 0).count();
        bytes = &bytes[hole..];
        if hole == 0
            && let Some(end) = memchr::memchr(b'\n', bytes)
            && end + 1 < bytes.len()
        {
            bytes = &bytes[end + 1..];
        }
    }
    let mut lines: Vec<String> = bytes
        .rsplit(|&byte| byte == b'\n')
        .map(visible)
        .skip_while(|line| line.is_empty())
        .take(most)
        .map(escape_bytes)
        .collect();
    lines.reverse();
    lines
}

/// Returns the part of a line that stays visible on a terminal.
fn visible(line: &[u8]) -> &[u8] {
    line.rsplit(|&byte| byte == b'\r')
        .find(|part| !part.is_empty())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_come_in_order_and_without_empty_ones_at_the_end() {
        assert_eq!(last_lines(b"a\n\nb\r\nc", false, 9), ["a", "", "b", "c"]);
        assert_eq!(last_lines(b"a\nb\nc\n\n\n", false, 2), ["b", "c"]);
        assert!(last_lines(b"\n\n", false, 3).is_empty());
        assert!(last_lines(b"a\n", false, 0).is_empty());
    }

    #[test]
    fn of_a_progress_bar_the_last_state_stays() {
        let bar = b"start\n 10%\r 50%\r100%\r\nend\xff\n";
        assert_eq!(last_lines(bar, false, 3), ["start", "100%", "end\u{fffd}"]);
    }

    #[test]
    fn a_line_whose_beginning_is_missing_is_left_out() {
        assert_eq!(last_lines(b"lf\nwhole\n", true, 3), ["whole"]);
        assert_eq!(
            last_lines(b"one endless line", true, 3),
            ["one endless line"]
        );
        assert_eq!(
            last_lines(b"\0\0\0first\nlast\n", true, 3),
            ["first", "last"]
        );
    }

    #[test]
    fn a_line_longer_than_what_is_read_is_shown_by_its_beginning() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stderr.log");
        let text = format!("before\nValueError: {}\n", "x".repeat(1 << 20));
        std::fs::write(&path, text).unwrap();
        let lines = read(&path, 9).unwrap();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], "before");
        assert!(lines[1].starts_with("ValueError: xxx") && lines[1].ends_with("x…"));
        assert!(lines[1].len() < 5000);
        // If no beginning is within reach, the result is the end of the line.
        std::fs::write(&path, "y".repeat(5 << 20)).unwrap();
        assert_eq!(read(&path, 9).unwrap()[0].len(), 64 << 10);
    }

    #[test]
    fn of_a_large_file_only_the_end_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stderr.log");
        let text: String = (0..100_000).map(|line| format!("line {line}\n")).collect();
        std::fs::write(&path, text).unwrap();
        assert_eq!(read(&path, 2).unwrap(), ["line 99998", "line 99999"]);
        let all = read(&path, usize::MAX).unwrap();
        assert!(all.len() > 5000 && all.len() < 6000, "{}", all.len());
    }
}
