//! `cargo xtask setup`: installs the needs of tests, benchmarks and checks.
//!
//! | item | from | installed by |
//! |---|---|---|
//! | tools (nextest, uv, ruff, …) | `xtask/tools.txt` | pip |
//! | one Python environment, with PyTorch | `python/requirements.txt` | uv |
//! | an etcd server, Slurm | Debian packages | apt-get |

use std::process::Command;

use anyhow::bail;

use crate::command::{root, step};
use crate::install::{PYTHON, TOOLS, python, tool};
use crate::{etcd, slurm};

/// Installs everything. `--lock` pins the newest versions first.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    match arguments {
        [] => {}
        [lock] if lock == "--lock" => {
            for file in [TOOLS, PYTHON] {
                step("pin requirements", &mut pin(file)?)?;
            }
        }
        _ => bail!("usage: cargo xtask setup [--lock]"),
    }
    tool("uv")?;
    python()?;
    etcd::server()?;
    slurm::proctracks();
    Ok(())
}

/// Returns the uv command that pins `file` with hashes, for every platform.
fn pin(file: &str) -> anyhow::Result<Command> {
    let compile = "pip compile --quiet --upgrade --universal --generate-hashes \
                   --no-emit-index-url --no-header --python-version 3.11";
    let mut uv = Command::new(tool("uv")?);
    uv.current_dir(root())
        .args(compile.split(' '))
        .arg(file.replace(".txt", ".in"))
        .args(["--output-file", file]);
    Ok(uv)
}
