//! `cargo xtask lines`: size of each crate, of this checkout or another one.
//!
//! Test code is code that only tests compile: code under `#[cfg(test)]`, the folders `tests`,
//! `examples` and `benches`, and packages for tests. The size of a file includes comments and blank
//! lines, but no tests.

use std::collections::BTreeSet;
use std::path::Path;

use crate::command::root;
use crate::tidy::cycles;
use crate::tidy::source::{Source, packages};
use crate::tidy::tokens::{Token, Tokens, lines, restricted};

#[derive(Debug, Default)]
struct Size {
    /// Lines of each file that is no test.
    files: Vec<usize>,
    code: usize,
    tests: usize,
    modules: usize,
    cycles: usize,
    restricted: usize,
}

pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let root = match arguments {
        [] => root(),
        [checkout] => Path::new(checkout).to_owned(),
        _ => anyhow::bail!("usage: cargo xtask lines [CHECKOUT]"),
    };
    let sources = Source::all(&root)?;
    let packages = packages(&root)?;
    println!(
        "| crate | files | code | tests | median file | largest file | modules | cycles | `pub(crate)` |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
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
        let mut size = Size::of(&sources, folder, inside)?;
        println!("{}", size.row(name));
        total.add(size);
    }
    println!("{}", total.row("total"));
    Ok(())
}

fn is_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// `true` if the package in `folder` is only for tests.
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
        let trees = if is_for_tests(folder) {
            Vec::new()
        } else {
            cycles::trees(all, folder)
        };
        let shipped: BTreeSet<&str> = trees.iter().flat_map(|tree| tree.files()).collect();
        size.modules = trees.iter().map(|tree| tree.modules.len()).sum();
        if !trees.is_empty() {
            size.cycles = cycles::of_crate(all, folder).len();
        }
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
                size.files.push(text.len() - tokens.test_lines);
                size.restricted += restricted(&tokens.shipped);
            } else {
                size.tests += all;
            }
        }
        Ok(size)
    }

    fn add(&mut self, other: Self) {
        self.files.extend(other.files);
        self.code += other.code;
        self.tests += other.tests;
        self.modules += other.modules;
        self.cycles += other.cycles;
        self.restricted += other.restricted;
    }

    /// Returns the row of the table, and sorts the files by size.
    fn row(&mut self, name: &str) -> String {
        self.files.sort_unstable();
        let (median, largest) = match &self.files[..] {
            [] => (0, 0),
            [.., largest] => (self.files[self.files.len() / 2], *largest),
        };
        format!(
            "| {name} | {} | {} | {} | {median} | {largest} | {} | {} | {} |",
            self.files.len(),
            self.code,
            self.tests,
            self.modules,
            self.cycles,
            self.restricted,
        )
    }
}
