//! Parser of `table.txt`.

use std::path::{Path, PathBuf};

/// Row of the table: one fault.
#[derive(Debug)]
pub(crate) struct Row {
    /// Line number in the table.
    pub(crate) line: usize,
    pub(crate) name: &'static str,
    pub(crate) setting: &'static str,
    /// Arguments of the launcher; an assignment such as `A=1` sets a variable.
    pub(crate) launcher: Vec<String>,
    /// Program of the worker, and its arguments.
    pub(crate) worker: Vec<String>,
    /// Global ranks that the verdict may name; `None` stands for no rank.
    pub(crate) ranks: Vec<Option<u64>>,
    /// Correct kinds of the cause.
    pub(crate) kinds: Vec<&'static str>,
    /// Texts; the text of the cause must contain one of them.
    pub(crate) texts: Vec<String>,
}

/// Returns all rows of the table.
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

/// Splits a text into words at blanks.
///
/// A part in double quotes belongs to one word, and `\"` is a quote.
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

/// Returns the directory of the scripts.
pub(crate) fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/scripts")
}
