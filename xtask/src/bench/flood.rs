//! Workers that write as fast as they can, and a console that shows everything.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::process::Stdio;

use anyhow::ensure;

use super::launcher::{Launcher, Running, labelled};
use super::worker::{self, LINE};

/// Size of one read of the console.
const READ: usize = 256 << 10;

/// Output of each worker, in files that are made before the measurement.
pub(super) struct Flood {
    folder: tempfile::TempDir,
    workers: u32,
    /// Number of lines of all workers together.
    pub(super) lines: usize,
}

pub(super) struct Poured {
    pub(super) megabytes_per_second: f64,
    /// Number of lines that arrived damaged.
    pub(super) torn: usize,
}

impl Flood {
    /// Prepares a flood of this number of lines from each worker.
    pub(super) fn prepare(workers: u32, lines: usize) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        for rank in 0..workers {
            let mut text = String::with_capacity(lines * LINE);
            for number in 0..lines {
                text.push_str(&line(rank, number));
                text.push('\n');
            }
            fs::write(folder.path().join(rank.to_string()), text)?;
        }
        Ok(Self {
            folder,
            workers,
            lines: workers as usize * lines,
        })
    }

    pub(super) fn pour(&self, launcher: &Launcher) -> anyhow::Result<Poured> {
        let folder = tempfile::tempdir()?;
        let notes = folder.path().join("notes");
        let mut command = launcher.play(&labelled(self.workers, folder.path()), "pour")?;
        command.args([&notes, self.folder.path()]);
        let mut launch = Running::start(command.stdout(Stdio::piped()))?;
        let mut console = launch.0.stdout.take().expect("stdout is piped");
        let expected = self.lines * (LINE + "[default0]:".len());
        // Its pages are accessed here, so that the reader does nothing but read during the flood.
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
            megabytes_per_second: (self.lines * LINE) as f64 * 1e3 / (last_byte - began) as f64,
            torn: self.lines - whole(&shown[..end], self.workers),
        })
    }
}

/// Returns the number of correct lines, each once and in its worker's order.
fn whole(shown: &[u8], workers: u32) -> usize {
    let mut next = vec![0; workers as usize];
    let mut whole = 0;
    for (rank, number) in shown.split(|&byte| byte == b'\n').filter_map(read) {
        if let Some(next) = next.get_mut(rank as usize)
            && number >= *next
        {
            whole += 1;
            *next = number + 1;
        }
    }
    whole
}

/// Returns rank and number of a labelled line, if every byte of it is right.
fn read(shown: &[u8]) -> Option<(u32, usize)> {
    let shown = str::from_utf8(shown).ok()?;
    let (label, said) = shown.strip_prefix("[default")?.split_once("]:")?;
    let rank: u32 = label.parse().ok()?;
    let number = said.split(' ').nth(3)?.parse().ok()?;
    (said == line(rank, number)).then_some((rank, number))
}

/// Returns a line of the flood, which follows from rank and number.
fn line(rank: u32, number: usize) -> String {
    let mut line = format!("rank {rank} line {number} ");
    let mut state = (u64::from(rank) << 32) + number as u64 + 1;
    while line.len() < LINE - 1 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .rotate_left(29)
            ^ 0x9e37;
        // Writing to a String cannot fail.
        let _ = write!(line, "{:x}", state >> 32);
    }
    line.truncate(LINE - 1);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_lines_are_not_counted() {
        let whole = |shown: &[u8]| whole(shown, 4);
        let shown = |rank, number| format!("[default{rank}]:{}\n", line(rank, number));
        assert_eq!(line(1, 7).len() + 1, LINE);
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
