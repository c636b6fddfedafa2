//! `cargo xtask ci`: checks that must pass before a merge, the cheapest first.

use std::path::Path;
use std::process::Command;
use std::thread;

use crate::command::{cargo, lowest_priority, root, step};
use crate::{budget, etcd, install, test, tidy};

/// Title, program and arguments of each check without a build or a network.
///
/// The programs are those of [`crate::setup`].
#[rustfmt::skip]
const CHECKS: [(&str, &str, &str); 6] = [
    ("spelling", "typos", "."),
    ("lints of Python", "ruff", "check --quiet"),
    ("lints of workflows", "zizmor", "--offline --quiet .github"),
    ("unused dependencies", "cargo-shear", "shear"),
    ("dependencies", "cargo-deny", "deny --offline check bans licenses sources"),
    ("hooks", "prek", "validate-config .pre-commit-config.yaml"),
];

pub(crate) fn run() -> anyhow::Result<()> {
    step("formatting", cargo().args(["fmt", "--all", "--check"]))?;
    check()?;
    tidy::run(&[])?;
    // PyTorch's packages take minutes to download, so this runs during the compilation. The tests
    // report an error again.
    let arrival = thread::spawn(|| {
        let _ = install::python();
        let _ = etcd::server();
    });
    let linted = linted();
    let built = test::build(&linted);
    let _ = arrival.join();
    built?;
    budget::run()?;
    test::suites(&linted, document)
}

/// `cargo xtask check`: lints that take seconds.
pub(crate) fn check() -> anyhow::Result<()> {
    // `cargo deny` reads the dependencies offline.
    step(
        "fetch of the dependencies",
        cargo().args(["fetch", "--quiet", "--locked"]),
    )?;
    for (title, program, arguments) in CHECKS {
        let mut command = Command::new(install::tool(program)?);
        command.args(arguments.split(' ')).current_dir(root());
        step(title, &mut command)?;
    }
    Ok(())
}

/// Builds the documentation.
fn document() -> anyhow::Result<()> {
    let mut command = cargo();
    command
        .args(["doc", "--workspace", "--locked"])
        .args(["--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings");
    step("documentation", &mut lowest_priority(&command))
}

/// Returns variables with which Clippy compiles the workspace.
///
/// Its lints apply, and warnings are denied. `cargo clippy` sets these variables too, but it only
/// checks, so the tests would compile everything a second time.
fn linted() -> Vec<(&'static str, String)> {
    let beside_cargo = std::env::var_os("CARGO")
        .map(|cargo| Path::new(&cargo).with_file_name("clippy-driver"))
        .filter(|driver| driver.is_file());
    let driver = beside_cargo.unwrap_or_else(|| "clippy-driver".into());
    vec![
        ("RUSTC_WORKSPACE_WRAPPER", driver.display().to_string()),
        ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings".to_owned()),
    ]
}
