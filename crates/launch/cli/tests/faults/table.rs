//! The rows of `table.txt`.

use std::path::{Path, PathBuf};

/// One fault.
#[derive(Debug)]
pub(crate) struct Row {
    /// Its line in the table.
    pub(crate) line: usize,
    pub(crate) name: &'static str,
    pub(crate) setting: &'static str,
    /// Arguments of the launcher; an environment variable where it looks like one.
    pub(crate) launcher: Vec<String>,
    /// The worker's program and its arguments.
    pub(crate) worker: Vec<String>,
    /// Global ranks of which any may be blamed; `None` if it may be nobody.
    pub(crate) ranks: Vec<Option<u64>>,
    /// Kinds that are right.
    pub(crate) kinds: Vec<&'static str>,
    /// Texts of which one must be in the cause's.
    pub(crate) texts: Vec<String>,
}

/// All rows of the table.
pub(crate) fn rows() -> Vec<Row> {
    include_str!("table.txt")
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(index, line)| row(index + 1, line))
        .collect()
}

fn row(number: usize, line: &'static str) -> Row {
    let columns: Vec<&str> = line.split('|').map(str::trim).collect();
    let [name, setting, launcher, worker, ranks, kinds, texts] = columns[..] else {
        panic!("line {number} of the table has {} columns", columns.len());
    };
    let ranks = ranks.split(" or ").map(|rank| match rank {
        "-" => None,
        rank => Some(rank.parse().unwrap()),
    });
    Row {
        line: number,
        name,
        setting,
        launcher: words(launcher),
        worker: words(worker),
        ranks: ranks.collect(),
        kinds: kinds.split('/').collect(),
        texts: texts.split(" or ").map(str::to_owned).collect(),
    }
}

/// Words apart by blanks; what stands in double quotes belongs to one word, and `\"` is a quote.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quoted, mut begun) = (String::new(), false, false);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => word.extend(letters.next()),
            '"' => (quoted, begun) = (!quoted, true),
            ' ' if !quoted => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            other => {
                word.push(other);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

/// Where the scripts are.
pub(crate) fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/scripts")
}
