//! `cargo xtask accidents`: plays usual accidents on a terminal, under `torchrun` and under `rdzv run`, and writes
//! `docs/accidents.md`. The scenes are those of the test program `accidents`.

use anyhow::Context;

use crate::command::{cargo, step};
use crate::install;

pub(crate) fn run() -> anyhow::Result<()> {
    let python = install::python()?;
    let environment = python.parent().and_then(std::path::Path::parent);
    let environment = environment.context("the interpreter is in no environment")?;
    step(
        "accidents",
        cargo()
            .args(["test", "--package", "rdzv", "--test", "accidents"])
            .args(["--", "--nocapture", "the_page_has_each_accident"])
            .env("RDZV_TORCH_ENVIRONMENT", environment),
    )
}
