//! Modules of a crate and their uses, from the paths in their code.
//!
//! A path is followed through `use`, even if a parent re-exports a name of a child, to the module
//! that declares the name. Method calls, and macros found by order of text, have no path.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Source;
use super::tokens::{
    Token, Tokens, after_attribute, after_brackets, before, declares, is_restriction, text, words,
};

/// Path in code, with its line.
pub(crate) type Path = (Vec<String>, usize);

/// Module of a crate, with the names and paths in its code.
#[derive(Debug, Default)]
pub(crate) struct Module {
    parent: Option<usize>,
    /// Name from the root of the crate, whose own name is empty.
    pub(crate) name: String,
    /// File that contains the module.
    pub(crate) file: String,
    pub(super) children: BTreeMap<String, usize>,
    /// Names that `use` imports, and their origins.
    pub(super) imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    declared: BTreeSet<String>,
    /// All paths in its code, including those of `use`, with their lines.
    pub(super) paths: Vec<Path>,
}

/// Modules of one library or program without its tests; the first is its root.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) modules: Vec<Module>,
}

/// Use of one module by another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) line: usize,
}

/// Target of a path.
#[derive(Clone, Copy)]
enum Target {
    Module(usize),
    /// Item that this module declares.
    Item(usize),
}

/// Sources of a crate: the text of each file by its path.
pub(crate) type Files<'a> = BTreeMap<&'a str, &'a Source>;

impl Tree {
    /// Reads the tree whose root is the file `root`.
    pub(crate) fn of(files: &Files<'_>, root: &str) -> Self {
        let mut tree = Self::default();
        let (folder, _) = root.rsplit_once('/').unwrap_or(("", root));
        tree.add_file(files, None, String::new(), root, folder);
        tree
    }

    /// Returns the files that contain the modules.
    pub(crate) fn files(&self) -> BTreeSet<&str> {
        let files = self.modules.iter().map(|module| module.file.as_str());
        files.collect()
    }

    /// Returns every use of a module by another one of this tree.
    pub(crate) fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for (from, module) in self.modules.iter().enumerate() {
            for (path, line) in &module.paths {
                // A single name that matches a module is probably a variable.
                let to = match (self.resolve(from, path, 0), path.len()) {
                    (Some(Target::Module(_)), 1) | (None, _) => continue,
                    (Some(Target::Module(to) | Target::Item(to)), _) => to,
                };
                if to != from {
                    let line = *line;
                    uses.push(Use { from, to, line });
                }
            }
        }
        uses
    }

    /// Returns the module and its ancestors, outermost first.
    pub(crate) fn ancestry(&self, module: usize) -> Vec<usize> {
        let line = std::iter::successors(Some(module), |at| self.modules[*at].parent);
        let mut line: Vec<usize> = line.collect();
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
        self.read(files, id, folder, &tokens.shipped);
        Some(id)
    }

    pub(super) fn add(&mut self, parent: Option<usize>, name: String, file: &str) -> usize {
        self.modules.push(Module {
            parent,
            name,
            file: file.to_owned(),
            ..Module::default()
        });
        self.modules.len() - 1
    }

    /// Reads the code of the module `id`, whose children are in `folder`.
    fn read(&mut self, files: &Files<'_>, id: usize, folder: &str, tokens: &[Token]) {
        let mut at = 0;
        let mut depth = 0;
        let mut elsewhere = None;
        while let Some(token) = tokens.get(at) {
            let after_attribute = after_attribute(tokens, at);
            let next = text(tokens, at + 1);
            match token.text.as_str() {
                _ if after_attribute > at => {
                    if text(tokens, at + 2) == "path" {
                        elsewhere = tokens.get(at + 4);
                    }
                    at = after_attribute;
                    continue;
                }
                "pub" if is_restriction(tokens, at) => at = after_brackets(tokens, at + 1) - 1,
                "use" if next != "<" => {
                    let statement = tokens[at..].iter();
                    let length = statement.take_while(|token| token.text != ";").count();
                    self.read_use(id, &tokens[at + 1..at + length], depth == 0);
                    at += length;
                }
                "mod" if depth == 0 => {
                    let body = text(tokens, at + 2) == "{";
                    let end = if body {
                        after_brackets(tokens, at + 2)
                    } else {
                        at + 3
                    };
                    let inside = body.then(|| &tokens[at + 3..end - 1]);
                    self.read_module(files, id, folder, next, inside, elsewhere.take());
                    at = end - 1;
                }
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                word if token.is_word() => {
                    if depth == 0 && declares(word) {
                        let name = words(&tokens[at + 1..]).next();
                        self.modules[id]
                            .declared
                            .extend(name.map(|name| name.text.clone()));
                    }
                    let before = before(tokens, at);
                    let continued = before == ":" && at > 1 && text(tokens, at - 2) == ":";
                    let path = path_at(tokens, at);
                    at += 3 * (path.len() - 1);
                    if before != "." && !continued {
                        self.modules[id].paths.push((path, token.line));
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    fn read_module(
        &mut self,
        files: &Files<'_>,
        parent: usize,
        folder: &str,
        name: &str,
        inside: Option<&[Token]>,
        elsewhere: Option<&Token>,
    ) {
        let above = &self.modules[parent];
        let file = above.file.clone();
        let full = match above.name.as_str() {
            "" => name.to_owned(),
            above => format!("{above}::{name}"),
        };
        let below = format!("{folder}/{name}");
        let child = if let Some(tokens) = inside {
            let id = self.add(Some(parent), full, &file);
            self.read(files, id, &below, tokens);
            Some(id)
        } else {
            let beside = file.rsplit_once('/').map_or("", |(folder, _)| folder);
            let path = match elsewhere {
                Some(path) => format!("{beside}/{}", path.text.trim_matches('"')),
                None if files.contains_key(format!("{below}.rs").as_str()) => format!("{below}.rs"),
                None => format!("{below}/mod.rs"),
            };
            self.add_file(files, Some(parent), full, &path, &below)
        };
        if let Some(child) = child {
            self.modules[parent].children.insert(name.to_owned(), child);
        }
    }

    /// Reads the inside of `use ...;`.
    ///
    /// Of a `use` inside a function, only a glob (`*`) imports names into the module.
    fn read_use(&mut self, id: usize, tokens: &[Token], items: bool) {
        let module = &mut self.modules[id];
        let mut path: Vec<String> = Vec::new();
        let mut starts = vec![0];
        let mut name = None;
        let mut line = None;
        let end = tokens.len();
        for at in 0..=end {
            match text(tokens, at) {
                "{" => {
                    starts.push(path.len());
                    line = None;
                }
                "," | "}" | "" => {
                    if let Some(line) = line.take() {
                        module.paths.push((path.clone(), line));
                        let name = name.take().or_else(|| path.last().cloned());
                        module
                            .imports
                            .extend(name.filter(|_| items).map(|name| (name, path.clone())));
                    }
                    if text(tokens, at) == "}" {
                        starts.pop();
                    }
                    path.truncate(starts.last().copied().unwrap_or_default());
                }
                "*" => {
                    module.paths.push((path.clone(), tokens[at].line));
                    module.globs.push(path.clone());
                    line = None;
                }
                ":" | "as" => {}
                word if before(tokens, at) == "as" => name = Some(word.to_owned()),
                word => {
                    line = Some(tokens[at].line);
                    if word != "self" || path.is_empty() {
                        path.push(word.to_owned());
                    }
                }
            }
        }
    }

    /// Returns the target of `path` in the module `from`.
    ///
    /// `None` if the module does not know the first name, such as that of another crate.
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

    /// Returns the target of `name` inside the module `at`.
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

/// Returns the names joined by `::`, from `at` on.
fn path_at(tokens: &[Token], mut at: usize) -> Vec<String> {
    let mut path = vec![tokens[at].text.clone()];
    while text(tokens, at + 1) == ":" && text(tokens, at + 2) == ":" {
        match tokens.get(at + 3).filter(|token| token.is_word()) {
            Some(token) => path.push(token.text.clone()),
            None => break,
        }
        at += 3;
    }
    path
}
