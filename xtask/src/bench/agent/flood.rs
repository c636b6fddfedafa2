//! Eight workers that write as fast as they can, and a console that shows all of it.

use std::fs;
use std::io::{Read, Write};
use std::process::Stdio;

use anyhow::ensure;

use super::{WORKERS, line};
use crate::bench::launcher::{Launcher, Running, labelled};
use crate::bench::worker;

/// Lines of each worker.
const LINES: usize = 200_000;

/// Size of one read of the console.
const READ: usize = 256 << 10;

/// What each worker writes, in files: making it must not take the time of what is measured.
pub(super) struct Flood {
    folder: tempfile::TempDir,
}

pub(super) struct Poured {
    pub(super) megabytes_per_second: f64,
    /// Lines that did not arrive as they were written.
    pub(super) torn: usize,
}

impl Flood {
    pub(super) fn prepare() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        for rank in 0..WORKERS {
            let mut text = String::with_capacity(LINES * worker::LINE);
            for number in 0..LINES {
                text.push_str(&line(rank, number));
                text.push('\n');
            }
            fs::File::create(folder.path().join(rank.to_string()))?.write_all(text.as_bytes())?;
        }
        Ok(Self { folder })
    }

    /// How many lines there are.
    pub(super) fn lines(&self) -> usize {
        WORKERS as usize * LINES
    }

    pub(super) fn pour(&self, launcher: &Launcher) -> anyhow::Result<Poured> {
        let folder = tempfile::tempdir()?;
        let notes = folder.path().join("notes");
        let mut command = launcher.play(&labelled(WORKERS, folder.path()), "pour")?;
        command.args([&notes, self.folder.path()]);
        let mut launch = Running::start(command.stdout(Stdio::piped()))?;
        let mut console = launch.0.stdout.take().expect("stdout was asked for");
        let expected = self.lines() * (worker::LINE + "[default0]:".len());
        // Its pages are touched here: while the flood runs, the reader does nothing but read.
        let mut shown = vec![b'.'; expected + READ];
        let (mut end, mut last_byte) = (0, 0);
        loop {
            ensure!(
                end + READ <= shown.len(),
                "the console shows more than was written"
            );
            let length = console.read(&mut shown[end..end + READ])?;
            if length == 0 {
                break;
            }
            end += length;
            last_byte = worker::now();
        }
        let status = launch.0.wait()?;
        ensure!(status.success(), "the flood ended with {status}");
        let began = worker::noted(&notes, "began")?;
        Ok(Poured {
            megabytes_per_second: (self.lines() * worker::LINE) as f64 * 1e3
                / (last_byte - began) as f64,
            torn: self.lines() - whole(&shown[..end]),
        })
    }
}

/// How many lines are as they were written, each once, and in the order of their worker.
fn whole(shown: &[u8]) -> usize {
    let mut next = [0; WORKERS as usize];
    let mut whole = 0;
    for shown in shown.split(|&byte| byte == b'\n') {
        let Some((rank, number)) = read(shown) else {
            continue;
        };
        if number >= next[rank as usize] {
            whole += 1;
            next[rank as usize] = number + 1;
        }
    }
    whole
}

/// Rank and number of a line with its label, if every byte of it is right.
fn read(shown: &[u8]) -> Option<(u32, usize)> {
    let shown = str::from_utf8(shown).ok()?;
    let (label, said) = shown.strip_prefix("[default")?.split_once("]:")?;
    let rank: u32 = label.parse().ok()?;
    let number = said.split(' ').nth(3)?.parse().ok()?;
    (rank < WORKERS && said == line(rank, number)).then_some((rank, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_lines_are_not_counted() {
        let shown = |rank, number| format!("[default{rank}]:{}\n", line(rank, number));
        assert_eq!(line(1, 7).len() + 1, worker::LINE);
        let whole_ones = [shown(0, 0), shown(1, 0), shown(0, 1)].concat();
        assert_eq!(whole(whole_ones.as_bytes()), 3);
        let (first, rest) = (&whole_ones[..50], &whole_ones[50..]);
        let torn = [first, &shown(2, 0), rest].concat();
        assert_eq!(
            whole(torn.as_bytes()),
            2,
            "one is torn, the other glued to it"
        );
        let twice = [shown(3, 5), shown(3, 5), shown(3, 4)].concat();
        assert_eq!(whole(twice.as_bytes()), 1);
        assert_eq!(
            whole(shown(0, 0).replace(":rank 0", ":rank 1").as_bytes()),
            0
        );
    }
}
