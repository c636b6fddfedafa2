//! `cargo xtask ci`: what must hold before anything is merged, cheapest first.

use crate::command::{cargo, step};

pub(crate) fn run() -> anyhow::Result<()> {
    step("formatting", cargo().args(["fmt", "--all", "--check"]))?;
    crate::tidy::run(&[])?;
    step(
        "lints",
        cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ]),
    )?;
    step(
        "documentation",
        cargo()
            .args([
                "doc",
                "--workspace",
                "--no-deps",
                "--document-private-items",
                "--locked",
            ])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    crate::test::run(&[])
}
