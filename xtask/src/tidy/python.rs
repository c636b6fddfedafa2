//! Modules of the Python package, and their imports of each other.
//!
//! An import inside a function or under `if TYPE_CHECKING` counts like any other import. A name
//! that an `__init__.py` re-exports leads to the module that defines it.

use std::collections::BTreeMap;

use super::modules::Tree;
use super::source::Source;

pub(super) const PACKAGE: &str = "python/rdzv";

/// Reads the tree of the package, with its imports as paths.
pub(super) fn tree(sources: &[Source]) -> Tree {
    let modules: BTreeMap<String, &Source> = sources
        .iter()
        .filter_map(|source| {
            let file = source.path.strip_prefix(PACKAGE)?.strip_suffix(".py")?;
            let module = file.strip_suffix("/__init__").unwrap_or(file);
            Some((module.replace('/', "::"), source))
        })
        .collect();
    let mut tree = Tree::default();
    let mut ids = BTreeMap::new();
    for (module, source) in &modules {
        let (parent, name) = module.rsplit_once("::").unwrap_or(("", ""));
        let parent = ids.get(parent).copied();
        let id = tree.add(parent, module.clone(), &source.path);
        if let Some(parent) = parent {
            tree.modules[parent].children.insert(name.to_owned(), id);
        }
        ids.insert(module.as_str(), id);
        for (path, name, line) in imports(&source.text) {
            let module = &mut tree.modules[id];
            module.paths.push((path.clone(), line));
            module.imports.insert(name, path);
        }
    }
    tree
}

/// Returns the imports from the package: path from its root, name, and line.
fn imports(text: &str) -> Vec<(Vec<String>, String, usize)> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((line, text)) = lines.next() {
        let mut statement = text.trim().to_owned();
        if statement.ends_with("import (") {
            let more = lines.by_ref().map(|(_, text)| text.trim());
            statement.extend(more.take_while(|text| *text != ")"));
        }
        let (from, names) = match statement.split_once(" import ") {
            Some((from, names)) => (from.strip_prefix("from "), names),
            None => (Some(""), statement.strip_prefix("import ").unwrap_or("")),
        };
        for name in names.trim_start_matches('(').split(',') {
            let (path, name) = name.split_once(" as ").unwrap_or((name, name));
            let whole = format!("{}.{}", from.unwrap_or(""), path.trim());
            let mut parts = whole.trim_start_matches('.').split('.');
            if parts.next() == Some("rdzv") {
                let path = ["crate"].into_iter().chain(parts);
                let path = path.map(str::to_owned).collect();
                found.push((path, name.trim().to_owned(), line + 1));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::cycles::of_crate;
    use super::super::source::example;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let example = |(path, text): &(&str, &str)| example(&format!("{PACKAGE}/{path}"), text);
        let sources: Vec<_> = files.iter().map(example).collect();
        let findings = of_crate(&sources, PACKAGE);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_circle_is_found_in_every_form_of_import() {
        let hands_on = "from rdzv._b import B\nfrom rdzv._a import A\n";
        for import in [
            "from rdzv._b import B",
            "from rdzv import os, _b as other",
            "import rdzv._b",
            "def f():\n    from rdzv import B",
            "if TYPE_CHECKING:\n    from rdzv import (\n        os,\n        B,\n    )",
        ] {
            let all = found(&[
                ("__init__.py", hands_on),
                ("_a.py", import),
                ("_b.py", "from rdzv.c import C\n"),
                ("c/__init__.py", "from rdzv.c._d import C"),
                ("c/_d.py", "from rdzv import A\n"),
            ]);
            let start = "python/rdzv/__init__.py: cycle of _a, _b, c\n";
            assert!(
                all.len() == 1 && all[0].starts_with(start),
                "{import}: {all:?}"
            );
        }
    }

    #[test]
    fn names_that_the_package_hands_on_and_examples_make_no_circle() {
        let hands_on = "from rdzv._native import N\nfrom rdzv.a import A\n";
        let example = "\"\"\"\n    >>> from rdzv.a import A\n\"\"\"\nfrom rdzv import N\n";
        let all = found(&[
            ("__init__.py", hands_on),
            ("_b.py", example),
            ("a.py", "from rdzv import N, _b\nfrom os import rdzv\n"),
        ]);
        assert_eq!(all, Vec::<String>::new());
    }
}
