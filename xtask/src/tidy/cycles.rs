//! Cycles among sibling modules, which are not allowed.
//!
//! Of two children of a folder, with all modules below them, at most one may use the other. Tests
//! do not count, and a child may use the items that its parent declares.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use super::Finding;
use super::modules::{Files, Tree};
use super::python;
use super::source::Source;

/// Uses among the children of one module: pair of children, and locations.
type Uses = BTreeMap<(usize, usize), BTreeSet<(String, usize)>>;

/// Returns the cycles of all crates, the Python package and xtask.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let folders: BTreeSet<&str> = sources.iter().filter_map(Source::crate_folder).collect();
    let crates = folders.iter().map(|folder| format!("crates/{folder}"));
    let folders = crates.chain([python::PACKAGE.to_owned(), "xtask".to_owned()]);
    folders
        .flat_map(|folder| of_crate(sources, &folder))
        .collect()
}

/// Returns the cycles of the crate in `folder`, relative to the workspace.
pub(crate) fn of_crate(sources: &[Source], folder: &str) -> Vec<Finding> {
    trees(sources, folder).iter().flat_map(cycles).collect()
}

/// Reads the library and the programs in `folder`, or the Python package.
pub(crate) fn trees(sources: &[Source], folder: &str) -> Vec<Tree> {
    if folder == python::PACKAGE {
        return vec![python::tree(sources)];
    }
    let inside = format!("{folder}/src/");
    let files: Files<'_> = sources
        .iter()
        .filter(|source| source.is_rust() && source.path.starts_with(&inside))
        .map(|source| (source.path.as_str(), source))
        .collect();
    let is_root = |path: &str| {
        let path = &path[inside.len()..];
        let program = path.strip_prefix("bin/");
        ["lib.rs", "main.rs"].contains(&path) || program.is_some_and(|name| !name.contains('/'))
    };
    let roots = files.keys().filter(|path| is_root(path));
    roots.map(|root| Tree::of(&files, root)).collect()
}

fn cycles(tree: &Tree) -> Vec<Finding> {
    let mut folders: BTreeMap<usize, Uses> = BTreeMap::new();
    for found in tree.uses() {
        let (from, to) = (tree.ancestry(found.from), tree.ancestry(found.to));
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        if let (Some(from), Some(to)) = (from.get(shared), to.get(shared)) {
            let parent = tree.ancestry(*from)[shared - 1];
            let file = tree.modules[found.from].file.clone();
            let locations = folders.entry(parent).or_default().entry((*from, *to));
            locations.or_default().insert((file, found.line));
        }
    }
    let named = |(parent, uses): (&usize, &Uses)| {
        let finding = |knot: BTreeSet<usize>| describe(tree, *parent, &knot, uses);
        knots(uses).into_iter().map(finding).collect::<Vec<_>>()
    };
    folders.iter().flat_map(named).collect()
}

/// Returns the sets of modules that use each other in cycles, in order.
fn knots(uses: &Uses) -> BTreeSet<BTreeSet<usize>> {
    let graph: DiGraphMap<usize, ()> = uses.keys().copied().collect();
    let components = tarjan_scc(&graph).into_iter();
    let several = components.filter(|component| component.len() > 1);
    several.map(BTreeSet::from_iter).collect()
}

fn describe(tree: &Tree, parent: usize, knot: &BTreeSet<usize>, uses: &Uses) -> Finding {
    let name = |module: &usize| {
        let name = &tree.modules[*module].name;
        name.rsplit("::").next().unwrap_or(name).to_owned()
    };
    let members: Vec<String> = knot.iter().map(name).collect();
    let mut text = format!("cycle of {}", members.join(", "));
    for ((from, to), locations) in uses {
        if knot.contains(from) && knot.contains(to) {
            let locations: Vec<_> = locations
                .iter()
                .map(|(file, line)| format!("{file}:{line}"))
                .collect();
            let shown = &locations[..locations.len().min(3)];
            let edge = format!("{} -> {}", name(from), name(to));
            text += &format!(
                "\n        {edge} ({}): {}",
                locations.len(),
                shown.join(" ")
            );
        }
    }
    Finding::new(&tree.modules[parent].file, text)
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| example(&format!("crates/a/src/{path}"), text))
            .collect();
        let findings = of_crate(&sources, "crates/a");
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_cycle_is_found_with_the_lines_that_make_it() {
        let all = found(&[
            ("lib.rs", "mod b;\nmod c;\nmod d;\n"),
            ("b.rs", "use crate::c::C;\n"),
            (
                "c.rs",
                "fn f() {\n    super::b::g(vec![crate::d::x()])\n}\n",
            ),
            ("d.rs", ""),
        ]);
        let expected = "crates/a/src/lib.rs: cycle of b, c\
            \n        b -> c (1): crates/a/src/b.rs:1\
            \n        c -> b (1): crates/a/src/c.rs:2";
        assert_eq!(all, [expected]);
    }

    #[test]
    fn a_cycle_through_names_that_a_parent_hands_on_is_found() {
        let lib = "mod b;\nmod c;\nmod e;\npub use b::{self as other, B};\nuse c::*;\npub(crate) use e::inner::E as Renamed;\n";
        for (b, c) in [
            ("use super::C;", "use super::B;"),
            ("use super::{C};", "use crate::{\n    other::B,\n};"),
            (
                "use super::*; fn f(_: C) {}",
                "use super::other; fn f() { other::g() }",
            ),
            ("fn f() { use crate::C; }", "pub struct C(crate::B);"),
        ] {
            let e = "pub mod inner; use inner::E;";
            let files = [
                ("lib.rs", lib),
                ("b.rs", b),
                ("c/mod.rs", &format!("{c} pub struct C;")),
                ("e.rs", e),
                ("e/inner.rs", "pub struct E;"),
            ];
            assert_eq!(found(&files).len(), 1, "{b} {c}");
        }
        let files = [
            ("lib.rs", lib),
            ("b.rs", "use crate::Renamed; pub struct B;"),
            ("c/mod.rs", ""),
            ("e.rs", "pub mod inner; use crate::B;"),
            ("e/inner.rs", "pub struct E;"),
        ];
        assert_eq!(found(&files).len(), 1);
    }

    #[test]
    fn tests_and_what_a_parent_declares_make_no_cycle() {
        let all = found(&[
            (
                "lib.rs",
                "mod b;\nmod c;\nuse b::B;\npub struct A;\npub use std::fmt;\n",
            ),
            (
                "b.rs",
                "use crate::{A, fmt}; use crate::c; fn f() { let b = 1; c::g(b.c, b) }",
            ),
            (
                "c.rs",
                "use super::*; pub(in crate::b) fn g(_: A, b: u8) {}\n#[cfg(test)]\nmod tests { use crate::b; }\n",
            ),
        ]);
        assert_eq!(all, Vec::<String>::new());
    }

    #[test]
    fn a_cycle_is_found_in_the_folder_where_it_is() {
        let all = found(&[
            ("lib.rs", "mod b;\n"),
            ("b/mod.rs", "mod c { use super::d::e::E; } mod d;"),
            ("b/d.rs", "mod e; fn f() { super::c::g() }"),
            ("b/d/e.rs", "pub(super) struct E;"),
        ]);
        assert_eq!(all.len(), 1);
        assert!(
            all[0].starts_with("crates/a/src/b/mod.rs: cycle of c, d"),
            "{}",
            all[0]
        );
    }
}
