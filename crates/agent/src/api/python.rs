//! Which Python runs a script.

use std::collections::BTreeMap;
use std::env::split_paths;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rdzv_core::env::{PYTHON_EXEC, VIRTUAL_ENV};

/// The names that an interpreter has.
const NAMES: [&str; 2] = ["python3", "python"];

/// `PYTHON_EXEC`, else the Python of the active virtual environment, else one in `PATH`.
pub(super) fn interpreter(
    environment: &BTreeMap<OsString, OsString>,
    exists: impl Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let variable = |name: &str| {
        environment
            .get(OsStr::new(name))
            .filter(|held| !held.is_empty())
    };
    if let Some(given) = variable(PYTHON_EXEC) {
        return Some(given.into());
    }
    let active = variable(VIRTUAL_ENV).map(|root| Path::new(root).join("bin"));
    let beside = active
        .into_iter()
        .flat_map(|directory| NAMES.map(|name| directory.join(name)));
    let path = variable("PATH");
    let in_path = NAMES.into_iter().flat_map(|name| {
        path.into_iter()
            .flat_map(split_paths)
            .map(|directory| directory.join(name))
            .collect::<Vec<_>>()
    });
    beside.chain(in_path).find(|program| exists(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_was_named_then_the_active_one_then_any() {
        let mut environment = BTreeMap::from([(OsString::from("PATH"), OsString::from("/a:/b"))]);
        let there = |path: &Path| {
            ["/b/python3", "/a/python", "/venv/bin/python"].contains(&path.to_str().unwrap())
        };
        let found = |environment: &BTreeMap<_, _>| interpreter(environment, there);
        assert_eq!(found(&environment), Some("/b/python3".into()));
        environment.insert(VIRTUAL_ENV.into(), "/venv".into());
        assert_eq!(found(&environment), Some("/venv/bin/python".into()));
        environment.insert(PYTHON_EXEC.into(), "/named".into());
        assert_eq!(found(&environment), Some("/named".into()));
        assert_eq!(interpreter(&BTreeMap::new(), |_| true), None);
    }
}
