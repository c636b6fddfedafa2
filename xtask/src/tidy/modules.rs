//! The modules of a crate, and which of them uses which: read from the paths in their code.
//!
//! A path is followed through `use`, also where a parent hands on a name of a child, to the module
//! that declares the name. Calls of methods and macros found by order of text have no path.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::TokenTree;

use super::source::Source;
use super::tokens::{Tokens, attribute, declares, is_restriction};

/// A path in code, with its line.
pub(crate) type Path = (Vec<String>, usize);

#[derive(Debug, Default)]
pub(crate) struct Module {
    parent: Option<usize>,
    /// From the root of the crate, which is empty itself.
    pub(crate) name: String,
    /// The file that the module stands in.
    pub(crate) file: String,
    children: BTreeMap<String, usize>,
    /// Names that `use` brings, and where they are from.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    declared: BTreeSet<String>,
    paths: Vec<Path>,
}

/// The modules of one library or program without its tests; the first is its root.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) modules: Vec<Module>,
}

/// A use of one module by another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) line: usize,
}

/// What a path leads to.
#[derive(Clone, Copy)]
enum Target {
    Module(usize),
    /// An item that this module declares.
    Item(usize),
}

/// Everything that a crate is compiled from: the text of each file by its path.
pub(crate) type Files<'a> = BTreeMap<&'a str, &'a Source>;

impl Module {
    /// Every path in its code, also those of `use`, with its line.
    pub(crate) fn paths(&self) -> &[Path] {
        &self.paths
    }
}

impl Tree {
    /// Reads the tree whose root is the file `root`.
    pub(crate) fn of(files: &Files<'_>, root: &str) -> Self {
        let mut tree = Self {
            modules: Vec::new(),
        };
        let (folder, _) = root.rsplit_once('/').unwrap_or(("", root));
        tree.add_file(files, None, String::new(), root, folder);
        tree
    }

    /// The files that the modules stand in.
    pub(crate) fn files(&self) -> BTreeSet<&str> {
        let files = self.modules.iter().map(|module| module.file.as_str());
        files.collect()
    }

    /// Every use of a module by another one of this tree.
    pub(crate) fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for (from, module) in self.modules.iter().enumerate() {
            for (path, line) in &module.paths {
                // A single lower-case word is a variable rather than a module.
                let target = match (self.resolve(from, path, 0), path.len()) {
                    (Some(Target::Module(_)), 1) | (None, _) => continue,
                    (Some(Target::Module(to) | Target::Item(to)), _) => to,
                };
                if target != from {
                    let line = *line;
                    uses.push(Use {
                        from,
                        to: target,
                        line,
                    });
                }
            }
        }
        uses
    }

    /// The module and those that it stands in, outermost first.
    pub(crate) fn ancestry(&self, module: usize) -> Vec<usize> {
        let mut line = vec![module];
        let mut at = module;
        while let Some(parent) = self.modules[at].parent {
            line.push(parent);
            at = parent;
        }
        line.reverse();
        line
    }

    fn add_file(
        &mut self,
        files: &Files<'_>,
        parent: Option<usize>,
        name: String,
        path: &str,
        folder: &str,
    ) -> Option<usize> {
        let tokens = Tokens::of(files.get(path)?).ok()?;
        let id = self.add(parent, name, path);
        self.read(
            files,
            id,
            folder,
            &tokens.shipped.into_iter().collect::<Vec<_>>(),
            true,
        );
        Some(id)
    }

    fn add(&mut self, parent: Option<usize>, name: String, file: &str) -> usize {
        self.modules.push(Module {
            parent,
            name,
            file: file.to_owned(),
            ..Module::default()
        });
        self.modules.len() - 1
    }

    /// Reads code of the module `id`, whose children stand in `folder`.
    fn read(
        &mut self,
        files: &Files<'_>,
        id: usize,
        folder: &str,
        trees: &[TokenTree],
        items: bool,
    ) {
        let mut at = 0;
        let mut elsewhere = None;
        while let Some(tree) = trees.get(at) {
            if let Some(length) = attribute(&trees[at..]) {
                elsewhere = path_attribute(&trees[at + length - 1]).or(elsewhere);
                at += length;
                continue;
            }
            match tree {
                TokenTree::Ident(word) if word == "pub" => {
                    let visibility = matches!(trees.get(at + 1), Some(TokenTree::Group(group)) if is_restriction(group));
                    at += 1 + usize::from(visibility);
                }
                TokenTree::Ident(word) if word == "use" && !is_sign(trees.get(at + 1), '<') => {
                    let end = position(trees, at, ';');
                    self.read_use(id, &trees[at + 1..end], &mut Vec::new(), items);
                    at = end + 1;
                }
                TokenTree::Ident(word) if items && word == "mod" => {
                    if let Some(TokenTree::Ident(name)) = trees.get(at + 1) {
                        self.read_module(
                            files,
                            id,
                            folder,
                            &name.to_string(),
                            trees.get(at + 2),
                            elsewhere.take(),
                        );
                    }
                    at += 3;
                }
                TokenTree::Ident(word) => {
                    let before = at.checked_sub(1).map(|before| &trees[before]);
                    let continued =
                        is_sign(before, '.') || is_sign(before, ':') && is_double(trees, at);
                    let keyword = word.to_string();
                    if items && declares(&keyword) {
                        let named = trees[at + 1..].iter().find_map(|tree| match tree {
                            TokenTree::Ident(name) => Some(name.to_string()),
                            _ => None,
                        });
                        self.modules[id].declared.extend(named);
                    }
                    let (path, next) = path_at(trees, at);
                    if !continued {
                        let line = word.span().start().line;
                        self.modules[id].paths.push((path, line));
                    }
                    at = next;
                }
                TokenTree::Group(group) => {
                    let inside: Vec<_> = group.stream().into_iter().collect();
                    self.read(files, id, folder, &inside, false);
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    fn read_module(
        &mut self,
        files: &Files<'_>,
        parent: usize,
        folder: &str,
        name: &str,
        after: Option<&TokenTree>,
        elsewhere: Option<String>,
    ) {
        let above = &self.modules[parent];
        let (full, file) = match above.name.as_str() {
            "" => (name.to_owned(), above.file.clone()),
            above_name => (format!("{above_name}::{name}"), above.file.clone()),
        };
        let inside = format!("{folder}/{name}");
        let child = if let Some(TokenTree::Group(group)) = after {
            let id = self.add(Some(parent), full, &file);
            let trees: Vec<_> = group.stream().into_iter().collect();
            self.read(files, id, &inside, &trees, true);
            Some(id)
        } else if let Some(path) = elsewhere {
            let beside = file.rsplit_once('/').map_or("", |(folder, _)| folder);
            self.add_file(
                files,
                Some(parent),
                full,
                &format!("{beside}/{path}"),
                &inside,
            )
        } else {
            let flat = format!("{inside}.rs");
            let path = if files.contains_key(flat.as_str()) {
                flat
            } else {
                format!("{inside}/mod.rs")
            };
            self.add_file(files, Some(parent), full, &path, &inside)
        };
        if let Some(child) = child {
            self.modules[parent].children.insert(name.to_owned(), child);
        }
    }

    /// Reads the inside of `use ...;`, with what stands before it in the tree.
    fn read_use(&mut self, id: usize, trees: &[TokenTree], before: &mut Vec<String>, items: bool) {
        for part in trees.split(|tree| is_sign(Some(tree), ',')) {
            let depth = before.len();
            let mut name = None;
            let mut is_leaf = true;
            let mut line = 0;
            let mut renamed = false;
            for tree in part {
                match tree {
                    TokenTree::Ident(word) if word == "as" => renamed = true,
                    TokenTree::Ident(word) if renamed => name = Some(word.to_string()),
                    TokenTree::Ident(word) => {
                        line = word.span().start().line;
                        let word = word.to_string();
                        if word != "self" || before.is_empty() {
                            before.push(word);
                        }
                    }
                    TokenTree::Group(group) => {
                        let inside: Vec<_> = group.stream().into_iter().collect();
                        self.read_use(id, &inside, before, items);
                        is_leaf = false;
                    }
                    TokenTree::Punct(sign) if sign.as_char() == '*' => {
                        line = sign.span().start().line;
                        self.modules[id].paths.push((before.clone(), line));
                        self.modules[id].globs.push(before.clone());
                        is_leaf = false;
                    }
                    _ => {}
                }
            }
            if is_leaf && line > 0 {
                self.modules[id].paths.push((before.clone(), line));
                let name = name.or_else(|| before.last().cloned());
                if let Some(name) = name.filter(|_| items) {
                    self.modules[id].imports.insert(name, before.clone());
                }
            }
            before.truncate(depth);
        }
    }

    /// What `path` means in the module `from`; nothing if it leads out of the crate.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => Target::Module(self.modules[from].parent?),
            name => self.find(from, name, depth)?,
        };
        rest.iter().try_fold(start, |target, name| match target {
            Target::Item(_) => Some(target),
            Target::Module(at) if name == "super" => self.modules[at].parent.map(Target::Module),
            Target::Module(at) => Some(self.find(at, name, depth).unwrap_or(Target::Item(at))),
        })
    }

    /// What `name` means inside the module `at`.
    fn find(&self, at: usize, name: &str, depth: usize) -> Option<Target> {
        const DEEPEST: usize = 12;
        if depth > DEEPEST {
            return None;
        }
        let module = &self.modules[at];
        if let Some(child) = module.children.get(name) {
            return Some(Target::Module(*child));
        }
        if let Some(path) = module.imports.get(name) {
            let out_of_crate = Target::Item(at);
            return Some(self.resolve(at, path, depth + 1).unwrap_or(out_of_crate));
        }
        if module.declared.contains(name) {
            return Some(Target::Item(at));
        }
        module
            .globs
            .iter()
            .find_map(|glob| match self.resolve(at, glob, depth + 1)? {
                Target::Module(other) if other != at => self.find(other, name, depth + 1),
                _ => None,
            })
    }
}

fn is_sign(tree: Option<&TokenTree>, sign: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

/// Whether the two tokens before `at` are a `::`.
fn is_double(trees: &[TokenTree], at: usize) -> bool {
    at >= 2 && is_sign(trees.get(at - 2), ':')
}

/// The names from `at` on that `::` joins, and the index after them.
fn path_at(trees: &[TokenTree], mut at: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    while let Some(TokenTree::Ident(word)) = trees.get(at) {
        path.push(word.to_string());
        at += 1;
        if !(is_sign(trees.get(at), ':') && is_sign(trees.get(at + 1), ':')) {
            break;
        }
        if !matches!(trees.get(at + 2), Some(TokenTree::Ident(_))) {
            break;
        }
        at += 2;
    }
    (path, at)
}

fn position(trees: &[TokenTree], from: usize, sign: char) -> usize {
    let found = trees[from..]
        .iter()
        .position(|tree| is_sign(Some(tree), sign));
    found.map_or(trees.len(), |found| from + found)
}

/// The file in `[path = "file"]`.
fn path_attribute(brackets: &TokenTree) -> Option<String> {
    let TokenTree::Group(group) = brackets else {
        return None;
    };
    let trees: Vec<TokenTree> = group.stream().into_iter().collect();
    match &trees[..] {
        [TokenTree::Ident(name), _, TokenTree::Literal(file)] if name == "path" => {
            Some(file.to_string().trim_matches('"').to_owned())
        }
        _ => None,
    }
}
