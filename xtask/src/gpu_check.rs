//! `cargo xtask gpu-check`: the check of CUDA tensors on a machine with a GPU.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use crate::command::{root, target_folder};
use crate::wheel;

/// Page with the last result.
const PAGE: &str = "docs/gpu.md";

/// Line before the result in the page; the result reaches to the end.
const MARK: &str = "## Result";

/// Runs the task.
///
/// Without arguments, it fills a folder with a portable wheel and the script. `--table FILE` writes
/// the table of the script into the page.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    match arguments {
        [] => prepare(),
        [option, file] if option == "--table" => record(Path::new(file)),
        _ => bail!("gpu-check: pass no argument, or --table FILE"),
    }
}

fn prepare() -> anyhow::Result<()> {
    let folder = target_folder()?.join("gpu-check");
    let wheel = wheel::for_old_systems(&folder)?;
    let script = folder.join("gpu_check.py");
    fs::copy(root().join("python/gpu_check/gpu_check.py"), &script)?;
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    println!(
        "\ncopy {} to the machine with the GPU, and run there:\n\n  python3 gpu_check.py --wheel {name} \
         --out table.md\n\nthen record the result here: cargo xtask gpu-check --table table.md",
        folder.display()
    );
    Ok(())
}

fn record(file: &Path) -> anyhow::Result<()> {
    let table =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let page = root().join(PAGE);
    let text = fs::read_to_string(&page)?;
    let (before, _) = text
        .split_once(MARK)
        .with_context(|| format!("{PAGE} has no line '{MARK}'"))?;
    fs::write(&page, format!("{before}{MARK}\n\n{table}"))?;
    Ok(())
}
