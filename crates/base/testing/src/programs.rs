//! Paths of the programs that tests start.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Set if the programs are built already, so that the harness does not ask cargo.
const BUILT: &str = "RDZV_TEST_PROGRAMS_BUILT";

/// The binary that is all programs. Under this name it makes the names of them.
const ALL: &str = "rdzv-test-programs";

/// A program of `crates/test-programs`.
pub fn program(name: &str) -> PathBuf {
    static NAMING: Mutex<()> = Mutex::new(());
    let all = binary(ALL);
    let path = profile().join("programs").join(name);
    let _naming = NAMING.lock().unwrap();
    // The names are links, and one that was made before the last build is a link to what was built
    // then.
    if inode(&path) != inode(&all) {
        let status = Command::new(&all).status();
        assert!(status.unwrap().success(), "{}", all.display());
    }
    assert!(path.exists(), "{} has no program {name}", all.display());
    path
}

fn inode(path: &Path) -> Option<u64> {
    path.metadata().ok().map(|found| found.ino())
}

/// The binary of a package that has one of its own name.
pub fn binary(package: &str) -> PathBuf {
    let path = profile().join(package);
    build(&path, &["-p", package, "--bin", package]);
    path
}

/// An example of a package.
pub fn example(package: &str, name: &str) -> PathBuf {
    let path = profile().join("examples").join(name);
    build(&path, &["-p", package, "--example", name]);
    path
}

/// The folder in which cargo puts the programs of the profile of this test.
fn profile() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

/// Has cargo build a program, once in this process, so that no test runs an old one. Without cargo, and
/// where everything is built already, the program has to be there.
fn build(program: &Path, what: &[&str]) {
    static DONE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut done = DONE.lock().unwrap();
    let cargo = std::env::var_os("CARGO").filter(|_| std::env::var_os(BUILT).is_none());
    if let (Some(cargo), true) = (cargo, done.insert(program.to_owned())) {
        let profile = profile();
        let name = match profile.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            other => other,
        };
        let mut command = Command::new(cargo);
        // Variables of the package under test would have dependencies built again whose build
        // scripts read them.
        for (variable, _) in std::env::vars_os() {
            let name = variable.to_string_lossy();
            if ["CARGO_PKG_", "CARGO_MANIFEST_"]
                .iter()
                .any(|start| name.starts_with(start))
            {
                command.env_remove(&variable);
            }
        }
        let status = command
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
            .args([
                "build",
                "--quiet",
                "--locked",
                "--profile",
                name,
                "--target-dir",
            ])
            .arg(profile.parent().unwrap())
            .args(what)
            .status();
        assert!(status.unwrap().success(), "cargo build {}", what.join(" "));
    }
    assert!(
        program.exists(),
        "{} is missing: cargo build {}",
        program.display(),
        what.join(" ")
    );
}
