//! Choice of the Python interpreter that runs a script.

use std::collections::BTreeMap;
use std::env::split_paths;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rdzv_core::env::{PYTHON_EXEC, VIRTUAL_ENV};

/// File names of an interpreter, the preferred one first.
const NAMES: [&str; 2] = ["python3", "python"];

/// Interpreter, and the reason for the choice.
pub type Interpreter = (OsString, String);

/// Distributions that do not show the purpose of an environment.
const COMMON: [&str; 4] = ["rdzv", "pip", "setuptools", "wheel"];

/// Chooses the Python interpreter.
///
/// The first choice is `PYTHON_EXEC`, then the Python of the user's environment, then one in
/// `PATH`.
///
/// A link named `torchrun` in an environment belongs to that environment even when it is not
/// active, like the real `torchrun`. A link in a common directory such as `/usr/local/bin` belongs
/// to no environment, so the active environment comes first there. `link` is the directory of such
/// a link.
///
/// The program itself may be in an environment too, as with pipx and `uvx`. `own` returns the
/// directory of this program, or `None` if its environment contains no other packages (see
/// [`has_packages`]). This function calls `own` only if no environment is active.
pub fn interpreter(
    environment: &BTreeMap<OsString, OsString>,
    link: Option<&Path>,
    own: impl FnOnce() -> Option<PathBuf>,
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
    let linked = link.filter(|directory| is_file(&directory.join("../pyvenv.cfg")));
    let active = variable(VIRTUAL_ENV).map(|root| Path::new(root).join("bin"));
    let own = if active.is_none() { own() } else { None };
    let candidates = [
        (
            linked,
            "from the environment that contains the link `torchrun`",
        ),
        (active.as_deref(), "from the environment in VIRTUAL_ENV"),
        (link, "next to the link `torchrun`"),
        (
            own.as_deref(),
            "next to this program, in an environment with other packages",
        ),
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
        let skipped = match variable(VIRTUAL_ENV) {
            Some(root) => format!("; {VIRTUAL_ENV}={} has no Python", root.display()),
            None => String::new(),
        };
        Some((program.into(), format!("the first {name} in PATH{skipped}")))
    })
}

/// Returns `true` if an environment has a distribution that the user chose.
/// `programs` is the directory of programs in that environment. `names` returns the names in a
/// directory, or none if there is no such directory.
pub fn has_packages(programs: &Path, names: impl Fn(&Path) -> Vec<OsString>) -> bool {
    let Some(root) = programs.parent() else {
        return false;
    };
    let lib = root.join("lib");
    let versions = names(&lib);
    let mut versions = versions
        .iter()
        .filter(|name| name.to_string_lossy().starts_with("python3"));
    versions.any(|version| {
        let packages = names(&lib.join(version).join("site-packages"));
        packages.iter().any(|name| {
            let name = name.to_string_lossy();
            let name = name
                .strip_suffix(".dist-info")
                .or(name.strip_suffix(".egg-info"));
            name.is_some_and(|name| {
                let (distribution, _) = name.split_once('-').unwrap_or((name, ""));
                !COMMON.contains(&distribution.to_lowercase().as_str())
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_of_the_program_alone_has_no_packages() {
        let has = |packages: &[&str]| {
            has_packages(Path::new("/tool/bin"), |directory| {
                let names = match directory.to_str().unwrap() {
                    "/tool/lib" => &["pkgconfig", "python3.12"],
                    "/tool/lib/python3.12/site-packages" => packages,
                    _ => &[],
                };
                names.iter().map(OsString::from).collect()
            })
        };
        let alone = [
            "rdzv",
            "rdzv-0.1.0.dist-info",
            "pip-25.0.dist-info",
            "_x.pth",
        ];
        assert!(!has(&alone));
        assert!(has(&[&alone[..], &["torch-2.15.0.dist-info"]].concat()));
        assert!(has(&["mine.egg-info"]));
        assert!(!has(&[]));
    }

    #[test]
    fn the_programs_own_environment_counts_where_none_is_active() {
        let mut environment = BTreeMap::from([(OsString::from("PATH"), OsString::from("/a"))]);
        let found = |environment: &BTreeMap<_, _>, own: Option<&str>| {
            let own = || own.map(PathBuf::from);
            let (program, _) = interpreter(environment, None, own, |_| false, |_| true)?;
            Some(program.into_string().unwrap())
        };
        let own = Some("/tool/bin");
        assert_eq!(found(&environment, None), Some("/a/python3".into()));
        assert_eq!(found(&environment, own), Some("/tool/bin/python3".into()));
        environment.insert(VIRTUAL_ENV.into(), "/venv".into());
        assert_eq!(found(&environment, own), Some("/venv/bin/python3".into()));
    }

    #[test]
    fn the_one_that_was_named_then_the_active_one_then_any() {
        let mut environment = BTreeMap::from([(OsString::from("PATH"), OsString::from("/a:/b"))]);
        let there = |path: &Path| {
            ["/b/python3", "/a/python", "/venv/bin/python"].contains(&path.to_str().unwrap())
        };
        let found = |environment: &BTreeMap<_, _>| {
            let (program, _) = interpreter(environment, None, || None, |_| false, there)?;
            Some(program.into_string().unwrap())
        };
        assert_eq!(found(&environment), Some("/b/python3".into()));
        environment.insert(VIRTUAL_ENV.into(), "/venv".into());
        assert_eq!(found(&environment), Some("/venv/bin/python".into()));
        environment.insert(VIRTUAL_ENV.into(), "/gone".into());
        let (_, reason) =
            interpreter(&environment, None, || None, |_| false, there).unwrap_or_default();
        assert_eq!(
            reason,
            "the first python3 in PATH; VIRTUAL_ENV=/gone has no Python"
        );
        environment.insert(PYTHON_EXEC.into(), "/named".into());
        assert_eq!(found(&environment), Some("/named".into()));
        assert_eq!(
            interpreter(&BTreeMap::new(), None, || None, |_| true, |_| true),
            None
        );
    }
}
