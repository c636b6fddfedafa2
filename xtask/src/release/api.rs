//! Snapshot of the public API, in `packaging/api`.

use std::fs;

use anyhow::Context;

use crate::command::{cargo, output, root};

/// Crates with a semver promise; the others are internal.
const CRATES: [&str; 7] = [
    "rdzv-agent",
    "rdzv-collective",
    "rdzv-cuda",
    "rdzv-rendezvous",
    "rdzv-rpc",
    "rdzv-store",
    "rdzv-worker-server",
];

/// Writes the public items of each crate to its file.
///
/// Needs `cargo-public-api` and a nightly toolchain, because only nightly writes rustdoc's JSON.
pub(super) fn write() -> anyhow::Result<()> {
    let folder = root().join("packaging/api");
    fs::create_dir_all(&folder)?;
    for name in CRATES {
        println!("\n==> public API of {name}");
        let mut command = cargo();
        command
            .args(["public-api", "--package", name, "--all-features", "-sss"])
            .env_remove("RUSTUP_TOOLCHAIN");
        let items = output(&mut command).context(
            "install the tool: cargo install --locked cargo-public-api; rustup toolchain install \
             nightly",
        )?;
        fs::write(folder.join(format!("{name}.txt")), items)?;
    }
    Ok(())
}
