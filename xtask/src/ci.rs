//! `cargo xtask ci`: all checks that a change must pass, cheapest first.

use std::path::Path;
use std::process::Command;
use std::thread;

use crate::command::{cargo, lowest_priority, root, step};
use crate::{budget, etcd, install, site, test, tidy};

/// Title, program and arguments of each check without build and network.
///
/// [`crate::setup`] installs the programs.
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
    // The download of PyTorch's packages takes minutes, so it runs during the compilation. An error
    // appears again when the tests request these packages.
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

/// Runs `cargo xtask check`: the lints that take only seconds.
pub(crate) fn check() -> anyhow::Result<()> {
    // `cargo deny` reads the dependencies offline, so they must be on this machine.
    step(
        "fetch of the dependencies",
        cargo().args(["fetch", "--quiet", "--locked"]),
    )?;
    for (title, program, arguments) in CHECKS {
        let mut command = Command::new(install::tool(program)?);
        command.args(arguments.split(' ')).current_dir(root());
        step(title, &mut command)?;
    }
    site::check()
}

/// Builds the documentation of the crates; a warning is an error.
fn document() -> anyhow::Result<()> {
    let mut command = cargo();
    command
        .args(["doc", "--workspace", "--locked"])
        .args(["--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings");
    step("documentation", &mut lowest_priority(&command))
}

/// Returns variables that make Clippy compile the workspace and deny warnings.
///
/// `cargo clippy` sets the same variables, but it only checks the code. The tests would then need a
/// second compilation.
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
