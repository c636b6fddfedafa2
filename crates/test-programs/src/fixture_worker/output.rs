//! Steps that write output.

use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write};

use crate::fixture_worker::ending::become_shell;
use crate::fixture_worker::number;

/// Executes a step of this family; `None` if the name belongs to another one.
pub(crate) fn step(name: &str, value: &str, rest: &[String]) -> Option<io::Result<()>> {
    Some(match name {
        "out" => writeln!(io::stdout(), "{value}"),
        "err" => writeln!(io::stderr(), "{value}"),
        "out-part" => {
            let mut stdout = io::stdout();
            write!(stdout, "{value}").and_then(|()| stdout.flush())
        }
        "env" => match env::var(value) {
            Ok(held) => writeln!(io::stdout(), "{value}={held}"),
            Err(_) => writeln!(io::stdout(), "{value}"),
        },
        "pid" => writeln!(io::stdout(), "pid={}", std::process::id()),
        "flood" => number(value).and_then(|bytes| flood(&mut io::stdout().lock(), bytes)),
        "flood-err" => number(value).and_then(|bytes| flood(&mut io::stderr().lock(), bytes)),
        "close-stdio" => Err(become_shell("exec \"$@\" <&- >&- 2>&-", rest)),
        "write" => {
            let (path, text) = value.split_once(':').unwrap_or((value, ""));
            append(path, text)
        }
        "note-pid" => append(value, &std::process::id().to_string()),
        _ => return None,
    })
}

fn append(path: &str, text: &str) -> io::Result<()> {
    // One write per line, so that several workers may share the file.
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(format!("{text}\n").as_bytes())
}

fn flood(stream: &mut dyn Write, bytes: u64) -> io::Result<()> {
    let line: Vec<u8> = (0..99_u8).map(|at| b'a' + at % 26).chain(*b"\n").collect();
    let block = line.repeat(640);
    let mut left = bytes;
    while left > 0 {
        let now = left.min(block.len() as u64);
        let length = usize::try_from(now).unwrap_or(block.len());
        stream.write_all(&block[..length])?;
        left -= now;
    }
    stream.flush()
}
