//! Resources, output and stacks of this node's workers, for viewers.
//!
//! Nothing here runs without a viewer or a reader of the metrics.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rdzv_core::escape::escape;
use serde::{Deserialize, Serialize};

use super::{NodeReport, WorkerStatus};
use crate::hang::{Recorders, inspect};
use crate::process_stat::ProcessStat;

/// Number of bytes at the end of a file in which a step is searched.
const SEARCHED: u64 = 2 << 10;

/// Maximum number of bytes in one answer about output.
const MOST_BYTES: u64 = 48 << 10;

/// Words before a number that counts the progress of a training.
const STEP_WORDS: [&str; 5] = ["step", "steps", "iter", "iteration", "epoch"];

/// Samples of the workers; remembers the previous sample.
#[derive(Debug, Default)]
pub struct Sampler {
    before: BTreeMap<u32, (Instant, Duration)>,
    outputs: BTreeMap<u32, (u64, Option<u64>)>,
}

impl Sampler {
    /// Adds processor time, memory and output of all running workers to a report.
    pub fn sample(&mut self, report: &mut NodeReport) {
        let (now, mut seen) = (Instant::now(), BTreeMap::new());
        for worker in report.workers.iter_mut().filter(|worker| worker.running) {
            let pid = worker.identity.pid;
            let Some(stat) = ProcessStat::of(pid) else {
                continue;
            };
            if let Some((then, used)) = self.before.get(&pid) {
                let (took, used) = (now - *then, stat.cpu.saturating_sub(*used));
                let share = used.as_secs_f64() / took.as_secs_f64().max(1e-3);
                worker.processor = Some((share * 100.0).round() as u32);
            }
            seen.insert(pid, (now, stat.cpu));
            worker.memory = memory(pid).map(|bytes| bytes >> 20);
            let files = [&worker.stdout, &worker.stderr];
            let files = files.into_iter().flatten();
            let latest = files.filter_map(|path| Some((written(path)?, path))).max();
            if let Some((at, path)) = latest {
                let known = self.outputs.entry(pid).or_default();
                if known.0 != at {
                    *known = (at, step(path).or(known.1));
                }
                (worker.output, worker.step) = (Some(at), known.1);
            }
        }
        self.outputs.retain(|pid, _| seen.contains_key(pid));
        self.before = seen;
    }
}

/// Resources that a process has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerUsage {
    /// Processor time of the process and of its reaped children.
    pub processor: Duration,
    /// Resident memory in bytes.
    pub memory: u64,
}

/// Returns the resources of a process; `None` if it has exited.
pub fn usage(pid: u32) -> Option<WorkerUsage> {
    Some(WorkerUsage {
        processor: ProcessStat::of(pid)?.cpu,
        memory: memory(pid)?,
    })
}

/// Returns the time of a worker's last output to a file.
///
/// The time is in seconds since the Unix epoch.
pub fn last_output(worker: &WorkerStatus) -> Option<u64> {
    let files = [&worker.stdout, &worker.stderr].into_iter().flatten();
    files.filter_map(|path| written(path)).max()
}

/// Returns the resident memory of a process in bytes.
fn memory(pid: u32) -> Option<u64> {
    let sizes = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = sizes.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Returns the time of the last write to a file that is not empty.
fn written(path: &Path) -> Option<u64> {
    let file = path.metadata().ok().filter(|file| file.len() > 0)?;
    let at = file.modified().ok()?.duration_since(UNIX_EPOCH);
    Some(at.ok()?.as_secs())
}

/// Returns the last number after a word for progress at the end of a file.
fn step(path: &Path) -> Option<u64> {
    let text = tail(path, None, usize::MAX, SEARCHED).ok()?.text;
    let text = text.to_lowercase();
    let mut words = text.rsplit(|letter: char| !letter.is_alphanumeric());
    let mut after = None;
    words.find_map(|word| {
        let found = after.filter(|_| STEP_WORDS.contains(&word));
        if !word.is_empty() {
            after = word.parse().ok();
        }
        found
    })
}

/// Part of a worker's output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputTail {
    /// Lines; the last one may be incomplete.
    pub text: String,
    /// Position in the file after the text.
    pub next: u64,
    /// Process of the worker.
    pub pid: u32,
    /// Reason why there is no text, if there is none.
    pub error: Option<String>,
}

/// Returns lines of a file: those from a position on, or the last ones.
///
/// Control characters in lines are escaped. The function reads at most `most` bytes, or the default
/// if it is 0.
///
/// # Errors
///
/// Returns the error of the file system, such as a file that does not exist.
pub fn tail(path: &Path, from: Option<u64>, lines: usize, most: u64) -> io::Result<OutputTail> {
    let most = if most == 0 { MOST_BYTES } else { most };
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    // A new attempt may have replaced the file.
    let from = from.filter(|from| *from <= length);
    let start = from.unwrap_or_else(|| length.saturating_sub(most));
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(start))?;
    file.take(most).read_to_end(&mut bytes)?;
    // A line without its end follows later, unless it fills the answer.
    let mut kept = bytes.as_slice();
    if let Some(end) = memchr::memrchr(b'\n', kept).filter(|_| from.is_some()) {
        kept = &kept[..=end];
    } else if from.is_some() && (kept.len() as u64) < most {
        kept = &[];
    }
    let next = start + kept.len() as u64;
    if from.is_none() && start > 0 {
        let begin = memchr::memchr(b'\n', kept).map_or(0, |end| end + 1);
        kept = &kept[begin..];
    }
    let text = String::from_utf8_lossy(kept);
    let mut shown: Vec<String> = text.lines().map(escape).collect();
    shown.drain(..shown.len().saturating_sub(lines));
    let mut text = shown.join("\n");
    if !text.is_empty() {
        text.push('\n');
    }
    Ok(OutputTail {
        text,
        next,
        ..OutputTail::default()
    })
}

/// Stack of a worker, for viewers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShownStack {
    /// Rank in the job.
    pub rank: u32,
    /// Node of the worker.
    pub node: String,
    /// Process id of the worker.
    pub pid: u32,
    /// Calls of the main thread, innermost first.
    ///
    /// Without Python's calls, the state in the kernel.
    pub frames: Vec<String>,
    /// Reason why there are no Python calls, if there are none.
    pub without_frames: Option<String>,
}

/// Returns the stacks of all running workers of a report, or of one rank.
///
/// Must be called inside a tokio runtime on a thread that does not exit before the process.
pub async fn stacks(
    report: &NodeReport,
    tool: Option<&PathBuf>,
    rank: Option<u32>,
) -> Vec<ShownStack> {
    let workers = report
        .workers
        .iter()
        .filter(|worker| worker.running && rank.is_none_or(|rank| worker.identity.rank.0 == rank));
    let workers = workers.map(|worker| worker.identity.clone()).collect();
    let stacks = inspect(workers, tool, &Recorders::new()).await;
    let shown = stacks.into_iter().map(|stack| {
        let frames: Vec<String> = stack.frames.iter().map(ToString::to_string).collect();
        ShownStack {
            rank: stack.rank.0,
            node: report.node.to_string(),
            pid: stack.pid,
            without_frames: match (tool, stack.without_frames) {
                (None, _) => Some("no py-spy in PATH or next to the interpreter".to_owned()),
                (_, reason) => reason,
            },
            frames: if frames.is_empty() {
                vec![stack.kernel.to_string()]
            } else {
                frames
            },
        }
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_that_the_output_names_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stdout.log");
        for (text, expected) in [
            ("epoch 1\nloss 0.5\n", Some(1)),
            ("Step: 11 loss=3\nstep=12, loss=4\n", Some(12)),
            ("steps done\n", None),
            ("nothing\n", None),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(step(&path), expected, "{text}");
        }
    }

    #[test]
    fn output_is_followed_line_by_line_and_its_control_characters_are_escaped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stdout.log");
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        let first = tail(&path, None, 2, 0).unwrap();
        assert_eq!((&*first.text, first.next), ("two\nthr\n", 11));
        std::fs::write(&path, "one\ntwo\nthr\x1b[2J\nfour\nfi").unwrap();
        let more = tail(&path, Some(first.next), 9, 0).unwrap();
        assert_eq!(more.text, "\\u{1b}[2J\nfour\n");
        let none = tail(&path, Some(more.next), 9, 0).unwrap();
        assert_eq!((&*none.text, none.next), ("", more.next));
        // A shorter file is a new one.
        std::fs::write(&path, "new\n").unwrap();
        assert_eq!(tail(&path, Some(more.next), 9, 0).unwrap().text, "new\n");
    }
}
