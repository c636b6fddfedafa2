//! Paths of the programs that tests start.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Variable that is set if the programs are built already.
/// Then the harness does not call cargo.
const BUILT: &str = "RDZV_TEST_PROGRAMS_BUILT";

/// Name of the binary that contains all programs.
/// When called by this name, the binary creates hard links with the names of the programs.
const ALL: &str = "rdzv-test-programs";

/// Returns the path of a program of `crates/test-programs`.
pub fn program(name: &str) -> PathBuf {
    static NAMING: Mutex<()> = Mutex::new(());
    let all = binary(ALL);
    let path = profile().join("programs").join(name);
    let _naming = NAMING.lock().unwrap();
    // The names are hard links. A link that was created before the last build refers to an old
    // program.
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

/// Returns the path of the binary that has the name of its package.
pub fn binary(package: &str) -> PathBuf {
    let path = profile().join(package);
    build(&path, &["-p", package, "--bin", package]);
    path
}

/// Returns the path of an example of a package.
pub fn example(package: &str, name: &str) -> PathBuf {
    let path = profile().join("examples").join(name);
    build(&path, &["-p", package, "--example", name]);
    path
}

/// Returns the folder with the programs of this test's build profile.
fn profile() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

/// Builds a program with cargo, at most once per test process.
/// Tests under cargo thus run no old program. Without cargo, or if everything is built already, the
/// program must exist.
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
        // Some build scripts read these variables of the package under test. Without their removal,
        // cargo would rebuild dependencies.
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
