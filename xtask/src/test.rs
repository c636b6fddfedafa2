//! `cargo xtask test`: every test there is, with one command, on a machine that has cargo and
//! Python.
//!
//! Rust first, because it is quick to fail; then `interop/`, which holds real PyTorch against the
//! binaries just built. Tests that need an etcd server, or gigabytes of memory, are ignored by a plain
//! `cargo test`, and run here. PyTorch or etcd missing is a failure, never a skip.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::command::{cargo, output, root, step};
use crate::{etcd, venv};

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
    let launcher = built.join("rdzv");
    let store_client = built.join("store_client");
    let state_codec = built.join("state_codec");
    let member = built.join("member");
    let plain_store = built.join("serve");
    let placement = built.join("placement");
    let dlpack_border = built.join("libdlpack_border.so");
    for program in [
        &launcher,
        &store_client,
        &state_codec,
        &member,
        &plain_store,
        &placement,
        &dlpack_border,
    ] {
        ensure!(program.is_file(), "{} was not built", program.display());
    }
    step(
        "interop tests with PyTorch",
        Command::new(python)
            .current_dir(root())
            .args(["-m", "pytest", "interop"])
            .args(arguments)
            .env(etcd::VARIABLE, server)
            .env("RDZV_BINARY", launcher)
            .env("RDZV_STORE_CLIENT", store_client)
            .env("RDZV_STATE_CODEC", state_codec)
            .env("RDZV_MEMBER", member)
            .env("RDZV_PLAIN_STORE", plain_store)
            .env("RDZV_PLACEMENT", placement)
            .env("RDZV_DLPACK_BORDER", dlpack_border),
    )
}

/// Where cargo puts what it builds.
pub(crate) fn target_folder() -> anyhow::Result<PathBuf> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&text).context("cargo metadata printed no JSON")?;
    let folder = metadata["target_directory"].as_str();
    Ok(PathBuf::from(
        folder.context("cargo metadata names no target directory")?,
    ))
}
