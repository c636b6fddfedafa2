//! `cargo xtask tidy`: the house rules that a compiler cannot check.
//!
//! | rule | where |
//! |---|---|
//! | crates depend on each other only downwards, as drawn in `ARCHITECTURE.md`; core stays pure | [`crates`] |
//! | `unsafe` in one file; names of the environment in one file; no globals in libraries | [`fences`] |
//! | no cycle among the modules of a folder | [`cycles`] |
//! | whole words for names of files | [`files`] |
//! | tests that documents name are there | [`docs`] |
//!
//! A finding names the file, the line and the rule. The checks read sources through [`tokens`], so
//! that a word in a comment or in a text is not taken for code.

mod crates;
pub(crate) mod cycles;
mod docs;
mod fences;
mod files;
pub(crate) mod modules;
pub(crate) mod source;
pub(crate) mod tokens;

use std::fmt;

use anyhow::bail;

use crate::command::root;
use source::Source;
use tokens::Tokens;

/// One breach of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Relative to the root of the workspace, with the line if there is one.
    place: String,
    rule: String,
}

impl Finding {
    fn new(place: impl fmt::Display, rule: impl Into<String>) -> Self {
        Self {
            place: place.to_string(),
            rule: rule.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.rule)
    }
}

/// `arguments` may ask for one rule in one crate: `--cycles crates/agent`.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    println!("\n==> house rules");
    let sources = Source::all(&root())?;
    match arguments {
        [] => {}
        [rule, folder] if rule == "--cycles" => {
            return report(
                &sources,
                &cycles::of_crate(&sources, folder.trim_end_matches('/')),
            );
        }
        _ => bail!("usage: cargo xtask tidy [--cycles FOLDER]"),
    }
    let mut findings = crates::check(&crates::metadata()?)?;
    findings.extend(cycles::check(&sources));
    let variables = fences::declared_variables(&sources)?;
    for source in &sources {
        let mut lines = source.text.lines().count();
        if source.is_rust() {
            match Tokens::of(source) {
                Ok(tokens) => {
                    lines -= tokens.test_lines;
                    findings.extend(fences::check(source, &tokens, &variables));
                }
                Err(finding) => findings.push(finding),
            }
        }
        findings.extend(files::check(source));
        if let Some(warning) = files::warning(source, lines) {
            println!("    warning: {warning}");
        }
    }
    let functions = docs::functions(&sources);
    for (path, text) in source::documents(&root())? {
        findings.extend(docs::check(&path, &text, &functions));
    }
    report(&sources, &findings)
}

fn report(sources: &[Source], findings: &[Finding]) -> anyhow::Result<()> {
    for finding in findings {
        println!("    {finding}");
    }
    match findings.len() {
        0 => {
            println!("    {} files: no finding", sources.len());
            Ok(())
        }
        count => bail!("house rules: {count} finding(s), listed above"),
    }
}
