//! The Python that runs a script.

use std::collections::BTreeMap;
use std::env::split_paths;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use rdzv_core::env::{PYTHON_EXEC, VIRTUAL_ENV};

/// The names that an interpreter has.
const NAMES: [&str; 2] = ["python3", "python"];

/// An interpreter, and the reason for it.
pub type Interpreter = (OsString, String);

/// `PYTHON_EXEC`, else the Python of the environment that the user is in, else one in `PATH`.
///
/// A link named `torchrun` in an environment belongs to that environment even when it is not
/// active, as the real one would. One in a common directory such as `/usr/local/bin` belongs to
/// none, so there the active environment comes first. `link` is the directory of such a link.
pub fn interpreter(
    environment: &BTreeMap<OsString, OsString>,
    link: Option<&Path>,
    is_file: impl Fn(&Path) -> bool,
    is_program: impl Fn(&Path) -> bool,
) -> Option<Interpreter> {
    let variable = |name: &str| {
        let held = environment.get(OsStr::new(name));
        held.filter(|held| !held.is_empty())
    };
    if let Some(given) = variable(PYTHON_EXEC) {
        return Some((given.clone(), format!("{PYTHON_EXEC} is set")));
    }
    let own = link.filter(|directory| is_file(&directory.join("../pyvenv.cfg")));
    let active = variable(VIRTUAL_ENV).map(|root| Path::new(root).join("bin"));
    let candidates = [
        (own, "of the environment that the link `torchrun` is in"),
        (active.as_deref(), "VIRTUAL_ENV names its environment"),
        (link, "beside the link `torchrun`"),
    ];
    for (directory, reason) in candidates {
        let programs = NAMES.map(|name| Some(directory?.join(name)));
        let mut programs = programs.into_iter().flatten();
        if let Some(program) = programs.find(|program| is_program(program)) {
            return Some((program.into(), reason.to_owned()));
        }
    }
    let path = variable("PATH")?;
    NAMES.into_iter().find_map(|name| {
        let mut programs = split_paths(path).map(|directory| directory.join(name));
        let program = programs.find(|program| is_program(program))?;
        Some((program.into(), format!("the first {name} in PATH")))
    })
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
        let found = |environment: &BTreeMap<_, _>| {
            let (program, _) = interpreter(environment, None, |_| false, there)?;
            Some(program.into_string().unwrap())
        };
        assert_eq!(found(&environment), Some("/b/python3".into()));
        environment.insert(VIRTUAL_ENV.into(), "/venv".into());
        assert_eq!(found(&environment), Some("/venv/bin/python".into()));
        environment.insert(PYTHON_EXEC.into(), "/named".into());
        assert_eq!(found(&environment), Some("/named".into()));
        assert_eq!(
            interpreter(&BTreeMap::new(), None, |_| true, |_| true),
            None
        );
    }
}
