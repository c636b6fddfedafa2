//! The machines in core are siblings: each can be read, tested and changed without the others.

use super::Finding;
use super::lexer::{Kind, words};
use super::source::Source;

const FOLDER: &str = "crates/core/src/";
const MACHINES: [&str; 4] = ["store", "rendezvous", "group", "rpc"];

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let Some(inside) = source.path.strip_prefix(FOLDER) else {
        return Vec::new();
    };
    let own = inside.split(['/', '.']).next().unwrap_or_default();
    if !MACHINES.contains(&own) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for piece in source.shipped_pieces(Kind::Code) {
        for (offset, word) in words(piece.text) {
            if word != "crate" {
                continue;
            }
            for name in modules_after(&piece.text[offset + word.len()..]) {
                if MACHINES.contains(&name) && name != own {
                    let place = source.place(&piece, offset);
                    let rule = format!("the {own} machine must not import the {name} machine");
                    findings.push(Finding::new(place, rule));
                }
            }
        }
    }
    findings
}

/// The modules that `crate` is followed by: one in `::a::b`, several in `::{a::b, c}`.
fn modules_after(rest: &str) -> Vec<&str> {
    let Some(path) = rest.trim_start().strip_prefix("::") else {
        return Vec::new();
    };
    let Some(group) = path.trim_start().strip_prefix('{') else {
        return words(path)
            .next()
            .map(|(_, word)| word)
            .into_iter()
            .collect();
    };
    let mut names = Vec::new();
    let mut depth = 0_usize;
    let mut item = 0;
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' | ',' if depth == 0 => {
                names.extend(words(&group[item..at]).next().map(|(_, word)| word));
                if c == '}' {
                    break;
                }
                item = at + 1;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    #[test]
    fn a_machine_that_imports_its_sibling_is_found_at_its_line() {
        let source = example(
            "crates/core/src/group/policy.rs",
            "use crate::time::Now;\nuse crate::{rank::Rank, store::{keyspace, ops}};\n",
        );
        let found = check(&source);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "crates/core/src/group/policy.rs:2");
    }

    #[test]
    fn its_own_modules_and_the_shared_ones_are_free() {
        let source = example(
            "crates/core/src/store/ops.rs",
            "use crate::store::keyspace::Keyspace; // not crate::group\nuse crate::pickle;\n",
        );
        assert_eq!(check(&source), []);
    }

    #[test]
    fn a_nested_group_counts_by_its_first_name() {
        assert_eq!(
            modules_after("::{a::{store, b}, group, rpc::x}"),
            ["a", "group", "rpc"]
        );
        assert_eq!(modules_after("::store::ops::{a}"), ["store"]);
        assert_eq!(modules_after(" fn"), Vec::<&str>::new());
    }
}
