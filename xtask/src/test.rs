//! `cargo xtask test`: every test there is, with one command, on a machine that has cargo and
//! Python.
//!
//! Rust first, because it is quick to fail; then `interop/`, which holds real PyTorch against the
//! binaries just built. Tests that need an etcd server, or gigabytes of memory, are ignored by a plain
//! `cargo test`, and run here. PyTorch or etcd missing is a failure, never a skip.

use std::path::PathBuf;
use std::process::Command;

use anyhow::ensure;

use crate::command::{cargo, metadata, root, step};
use crate::{etcd, venv};

/// The programs that the interop suite starts, by the variables that name them.
const PROGRAMS: [(&str, &str); 7] = [
    ("RDZV_BINARY", "rdzv"),
    ("RDZV_STORE_CLIENT", "store_client"),
    ("RDZV_STATE_CODEC", "state_codec"),
    ("RDZV_MEMBER", "member"),
    ("RDZV_PLAIN_STORE", "serve"),
    ("RDZV_PLACEMENT", "placement"),
    ("RDZV_DLPACK_BORDER", "libdlpack_border.so"),
];

/// Extra arguments go to pytest, e.g. `-k queue`.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let python = venv::torch_python()?;
    let server = etcd::server()?;
    step(
        "build",
        cargo().args([
            "build",
            "--workspace",
            "--lib",
            "--bins",
            "--examples",
            "--locked",
        ]),
    )?;
    step(
        "Rust tests",
        cargo()
            .args(["test", "--workspace", "--locked", "--", "--include-ignored"])
            .env("RDZV_TEST_PROGRAMS_BUILT", "1")
            .env(etcd::VARIABLE, &server),
    )?;

    let built = target_folder()?.join("debug");
    let mut pytest = Command::new(python);
    pytest
        .current_dir(root())
        .args(["-m", "pytest", "interop"])
        .args(arguments)
        .env(etcd::VARIABLE, server);
    for (variable, name) in PROGRAMS {
        let program = built.join(name);
        ensure!(program.is_file(), "{} was not built", program.display());
        pytest.env(variable, program);
    }
    step("interop tests with PyTorch", &mut pytest)
}

/// Where cargo puts what it builds.
pub(crate) fn target_folder() -> anyhow::Result<PathBuf> {
    Ok(metadata()?.target_directory)
}
