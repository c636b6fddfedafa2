//! Names of public types: no two crates share one.

use std::collections::BTreeMap;

use super::Finding;
use super::source::Source;
use super::tokens::{Token, Tokens, text};

/// Crates whose public types no other crate names.
const UNCHECKED: [&str; 2] = ["python", "sim"];

/// Names that crates may share: the machine contract, and Rust's aliases.
const SHARED: [&str; 4] = ["Input", "Output", "Settings", "Result"];

/// Public type: its name, the folder of its crate, and its location.
type PublicType = (String, String, String);

/// Returns the public types that a shipped source declares.
pub(super) fn declared(source: &Source, tokens: &Tokens) -> Vec<PublicType> {
    let crate_folder = source.crate_folder().filter(|_| source.is_shipped());
    let Some(folder) = crate_folder.filter(|folder| !UNCHECKED.contains(folder)) else {
        return Vec::new();
    };
    let is_type = |word: &str| ["struct", "enum", "trait", "type"].contains(&word);
    let shipped = &tokens.shipped;
    let names = (0..shipped.len())
        .filter(|at| text(shipped, *at) == "pub" && is_type(text(shipped, at + 1)))
        .filter_map(|at| shipped.get(at + 2));
    let names = names.filter(|name| !SHARED.contains(&name.text.as_str()));
    let public = |name: &Token| (name.text.clone(), folder.into(), source.location(name.line));
    names.map(public).collect()
}

/// Checks that the types with one name belong to one crate.
pub(super) fn check(types: &[PublicType]) -> Vec<Finding> {
    let mut first: BTreeMap<&str, &PublicType> = BTreeMap::new();
    let mut findings = Vec::new();
    for public in types {
        let (name, folder, location) = public;
        let known = first.entry(name).or_insert(public);
        if known.1 != *folder {
            let rule = format!(
                "{} has a public type `{name}`: qualify one of them",
                known.2
            );
            findings.push(Finding::new(location, rule));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    fn found(sources: &[(&str, &str)]) -> Vec<String> {
        let types = sources.iter().flat_map(|(path, text)| {
            let source = example(path, text);
            declared(&source, &Tokens::of(&source).unwrap())
        });
        let findings = check(&types.collect::<Vec<_>>());
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn crates_do_not_share_names_of_public_types() {
        let (a, b) = ("crates/a/one/src/lib.rs", "crates/a/two/src/lib.rs");
        let public = "pub struct A;\npub enum B {}\n";
        assert_eq!(
            found(&[(a, public), (b, "\npub type B = u8;")]),
            [format!(
                "{b}:2: {a}:2 has a public type `B`: qualify one of them"
            )]
        );
        for (path, text) in [
            (a, public),
            (b, "pub(crate) struct A; struct B; pub use one::A;"),
            (b, "#[cfg(test)] mod tests { pub struct A; }"),
            ("crates/a/two/tests/b.rs", public),
            ("crates/sim/src/lib.rs", public),
        ] {
            assert_eq!(
                found(&[(a, public), (path, text)]),
                [""; 0],
                "{path}: {text}"
            );
        }
        let shared = "pub enum Input {}";
        assert_eq!(found(&[(a, shared), (b, shared)]), [""; 0]);
    }
}
