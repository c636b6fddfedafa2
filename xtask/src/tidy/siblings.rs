//! The machines in core are siblings: each can be read, tested and changed without the others.

use proc_macro2::{Ident, TokenStream, TokenTree};

use super::Finding;
use super::source::Source;
use super::tokens::Tokens;

const FOLDER: &str = "crates/core/src/";
const MACHINES: [&str; 5] = ["store", "rendezvous", "group", "hang", "rpc"];

pub(crate) fn check(source: &Source, tokens: &Tokens) -> Vec<Finding> {
    let Some(inside) = source.path.strip_prefix(FOLDER) else {
        return Vec::new();
    };
    let own = inside.split(['/', '.']).next().unwrap_or_default();
    if !MACHINES.contains(&own) {
        return Vec::new();
    }
    modules_used(&tokens.shipped)
        .iter()
        .filter(|name| MACHINES.iter().any(|machine| *name == machine) && *name != own)
        .map(|name| {
            let rule = format!("the {own} machine must not import the {name} machine");
            Finding::new(source.place(name.span().start().line), rule)
        })
        .collect()
}

/// The modules at the root of the crate that paths and imports name: `a` in `crate::a::b`, `a` and
/// `c` in `crate::{a::b, c}`.
fn modules_used(stream: &TokenStream) -> Vec<Ident> {
    let trees: Vec<TokenTree> = stream.clone().into_iter().collect();
    let mut names = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(group) => names.extend(modules_used(&group.stream())),
            TokenTree::Ident(word) if word == "crate" => {
                if let [first, second, path @ ..] = &trees[at + 1..]
                    && is(first, ':')
                    && is(second, ':')
                {
                    names.extend(first_names(path));
                }
            }
            _ => {}
        }
    }
    names
}

/// The first name of a path, or of each path in a group.
fn first_names(path: &[TokenTree]) -> Vec<Ident> {
    match path {
        [TokenTree::Ident(name), ..] => vec![name.clone()],
        [TokenTree::Group(group), ..] => {
            let trees: Vec<TokenTree> = group.stream().into_iter().collect();
            trees
                .split(|tree| is(tree, ','))
                .flat_map(first_names)
                .collect()
        }
        _ => Vec::new(),
    }
}

fn is(tree: &TokenTree, sign: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == sign)
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let source = example(path, text);
        let findings = check(&source, &Tokens::of(&source).unwrap());
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_machine_that_imports_its_sibling_is_found_at_its_line() {
        let text = "use crate::time::Now;\nuse crate::{\n    rank::Rank,\n    store::{keyspace, ops},\n};\n";
        assert_eq!(
            found("crates/core/src/group/policy.rs", text),
            [
                "crates/core/src/group/policy.rs:4: the group machine must not import the store machine"
            ]
        );
    }

    #[test]
    fn a_path_in_the_midst_of_code_is_found() {
        let text = "fn f() {\n    if g(|| { crate::store::ops::get() }) {}\n}\n";
        assert_eq!(found("crates/core/src/rpc.rs", text).len(), 1);
    }

    #[test]
    fn its_own_modules_and_the_shared_ones_are_free() {
        let text =
            "use crate::store::keyspace::Keyspace; // not crate::group\nuse crate::pickle;\n";
        assert_eq!(
            found("crates/core/src/store/ops.rs", text),
            Vec::<String>::new()
        );
    }

    #[test]
    fn tests_may_use_a_sibling() {
        let text = "#[cfg(test)]\nmod tests {\n    use crate::store::ops;\n}\n";
        assert_eq!(
            found("crates/core/src/group/policy.rs", text),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_nested_group_counts_by_its_first_name() {
        let names = |text: &str| modules_used(&text.parse().unwrap());
        assert_eq!(
            names("use crate::{a::{store, b}, group, {rpc::x}};"),
            ["a", "group", "rpc"]
        );
        assert_eq!(names("use crate::store::ops::{a};"), ["store"]);
        assert_eq!(
            names("pub(crate) fn f(a: self::crate_store::A) {}"),
            Vec::<Ident>::new()
        );
    }
}
