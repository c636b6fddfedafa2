//! `cargo xtask lines`: size of each crate in this or another checkout.
//!
//! The column "tests" counts code that only tests compile: code under `#[cfg(test)]`, the folders
//! `tests`, `examples` and `benches`, and packages for tests. The size of a file includes comments
//! and blank lines, but not tests.

use std::collections::BTreeSet;
use std::path::Path;

use crate::command::root;
use crate::tidy::cycles;
use crate::tidy::source::{Source, packages};
use crate::tidy::tokens::{Token, Tokens, lines};

#[derive(Debug, Default)]
struct Size {
    files: usize,
    /// Number of lines of the largest shipped file.
    largest: usize,
    code: usize,
    tests: usize,
}

pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let root = match arguments {
        [] => root(),
        [checkout] => Path::new(checkout).to_owned(),
        _ => anyhow::bail!("usage: cargo xtask lines [CHECKOUT]"),
    };
    let sources = Source::all(&root)?;
    let packages = packages(&root)?;
    println!("| crate | files | code | tests | largest file |\n|---|---:|---:|---:|---:|");
    let mut total = Size::default();
    for (folder, name) in &packages {
        let nearest = |path: &str| {
            let above = packages.iter().filter(|(folder, _)| is_in(path, folder));
            above
                .map(|(folder, _)| folder)
                .max_by_key(|folder| folder.len())
        };
        let inside = sources
            .iter()
            .filter(|source| source.is_rust() && nearest(&source.path) == Some(folder));
        let size = Size::of(&sources, folder, inside)?;
        println!("{}", size.row(name));
        total.add(&size);
    }
    println!("{}", total.row("total"));
    Ok(())
}

fn is_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// `true` if only tests use the package in `folder`.
fn is_for_tests(folder: &str) -> bool {
    folder
        .split('/')
        .any(|part| part == "fuzz" || part.starts_with("test"))
}

impl Size {
    fn of<'a>(
        all: &[Source],
        folder: &str,
        inside: impl Iterator<Item = &'a Source>,
    ) -> anyhow::Result<Self> {
        let mut size = Self::default();
        let trees = cycles::trees(all, folder);
        let trees = trees.iter().filter(|_| !is_for_tests(folder));
        let shipped: BTreeSet<&str> = trees.flat_map(|tree| tree.files()).collect();
        for source in inside {
            let tokens = Tokens::of(source).map_err(|finding| anyhow::anyhow!("{finding}"))?;
            let text: Vec<&str> = source.text.lines().collect();
            let count = |tokens: &[Token]| {
                let blank = |line: &usize| text[line - 1].trim().is_empty();
                lines(tokens).iter().filter(|line| !blank(line)).count()
            };
            let all = count(&tokens.all);
            if shipped.contains(source.path.as_str()) {
                let code = count(&tokens.shipped);
                size.code += code;
                size.tests += all - code;
                size.files += 1;
                size.largest = size.largest.max(text.len() - tokens.test_lines);
            } else {
                size.tests += all;
            }
        }
        Ok(size)
    }

    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.largest = self.largest.max(other.largest);
        self.code += other.code;
        self.tests += other.tests;
    }

    fn row(&self, name: &str) -> String {
        let Self {
            files,
            largest,
            code,
            tests,
        } = self;
        format!("| {name} | {files} | {code} | {tests} | {largest} |")
    }
}
