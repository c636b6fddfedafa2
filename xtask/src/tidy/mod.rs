//! `cargo xtask tidy`: the house rules that a compiler cannot check.
//!
//! | rule | module |
//! |---|---|
//! | crates depend only downwards; pure crates are pure | [`crates`] |
//! | `unsafe` and names of environment variables in few files | [`fences`] |
//! | no cycle among the modules of a folder, Rust or Python | [`cycles`], [`python`] |
//! | no two crates share the name of a public type | [`types`] |
//! | words, form of sentences, subjects of commits: limits that only fall | [`style`] |
//! | cited tests and rules exist; each item of PyTorch has a verdict and a proof | [`docs`] |
//! | no two crates share the name of a public type | [`types`] |
//!
//! A finding names the file, the line and the rule. Most checks of Rust code read it through
//! [`tokens`], so that a word in a comment or in a text does not count as code.

mod crates;
pub(crate) mod cycles;
mod docs;
mod fences;
pub(crate) mod modules;
mod python;
pub(crate) mod source;
mod style;
pub(crate) mod tokens;
mod types;

use std::{fmt, fs};

use anyhow::bail;

use crate::command::{metadata, root};
use source::Source;
use tokens::Tokens;

/// Maximum lines of a file without its tests, before a warning.
const LONG: usize = 600;

/// Breach of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Location, relative to the root of the workspace, with any line number.
    location: String,
    rule: String,
}

impl Finding {
    fn new(location: impl fmt::Display, rule: impl Into<String>) -> Self {
        Self {
            location: location.to_string(),
            rule: rule.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.location, self.rule)
    }
}

/// Checks all rules, or what `arguments` select.
///
/// They may select one rule in one crate with `--cycles crates/launch/agent` or
/// `--words crates/launch/agent`. `--lower` writes lower limits.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    println!("\n==> house rules");
    let sources = Source::all(&root())?;
    let documents = source::documents(&root())?;
    let mut lower = false;
    match arguments {
        [] => {}
        [rule] if rule == "--lower" => lower = true,
        [rule, folder] if rule == "--cycles" => {
            let folder = folder.trim_end_matches('/');
            return report(&sources, &cycles::of_crate(&sources, folder));
        }
        [rule, folder] if rule == "--words" => {
            let found = style::matches(&[sources, documents].concat(), folder)?;
            return report(&[], &found);
        }
        _ => bail!("usage: cargo xtask tidy [--lower | --cycles FOLDER | --words FOLDER]"),
    }
    let layers = crates::layers(&fs::read_to_string(root().join("ARCHITECTURE.md"))?)?;
    let mut findings = crates::check(&metadata()?, &layers, &sources);
    findings.extend(cycles::check(&sources));
    let variables = fences::declared_variables(&sources)?;
    let mut types = Vec::new();
    for source in &sources {
        let mut lines = source.text.lines().count();
        let tokens = source.is_rust().then(|| Tokens::of(source)).transpose();
        match &tokens {
            Ok(Some(tokens)) => {
                lines -= tokens.test_lines;
                findings.extend(fences::check(source, tokens, &variables));
                types.extend(types::declared(source, tokens));
            }
            Ok(None) => {}
            Err(finding) => findings.push(finding.clone()),
        }
        if lines > LONG {
            println!(
                "    warning: {}: {lines} lines: more than one idea?",
                source.path
            );
        }
    }
    findings.extend(types::check(&types));
    let functions = docs::functions(&sources);
    for document in documents
        .iter()
        .filter(|document| document.path.starts_with("docs/"))
    {
        findings.extend(docs::check(&document.path, &document.text, &functions));
        findings.extend(docs::verdicts(&document.path, &document.text));
    }
    let text_of = |path: &str| {
        let page = documents.iter().find(|document| document.path == path);
        page.map_or("", |document| document.text.as_str())
    };
    let measured = text_of("docs/benchmarks.md");
    for page in ["README.md", "docs/comparison.md"] {
        findings.extend(docs::figures(page, text_of(page), measured));
    }
    findings.extend(docs::rules(&documents, &sources));
    let texts = [sources, documents].concat();
    findings.extend(style::check(&texts, lower)?);
    report(&texts, &findings)
}

/// Prints the findings, and fails if there is at least one.
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
