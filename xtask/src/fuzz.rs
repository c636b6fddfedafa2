//! `cargo xtask fuzz [seconds]`: runs each target of `fuzz/` for this time.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::command::{cargo, output, root, step, succeeds};

pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let seconds: u32 = match arguments.first() {
        None => 60,
        Some(text) => text
            .parse()
            .with_context(|| format!("'{text}' is no number of seconds"))?,
    };
    if !succeeds(cargo().args(["fuzz", "--version"])) {
        step(
            "install cargo-fuzz",
            cargo().args(["install", "--locked", "cargo-fuzz"]),
        )?;
    }
    let targets = output(fuzz().arg("list"))?;
    let targets: Vec<&str> = targets.split_whitespace().collect();
    ensure!(!targets.is_empty(), "fuzz/ declares no target");
    for target in targets {
        // Without a sanitizer the targets build with the stable compiler. They detect panics, hangs
        // and unbounded memory, which need no sanitizer.
        step(
            &format!("fuzz {target} for {seconds} s"),
            fuzz()
                .args(["run", "--sanitizer", "none", target, "--"])
                .args([
                    format!("-max_total_time={seconds}"),
                    "-rss_limit_mb=2048".to_owned(),
                    "-timeout=10".to_owned(),
                    "-print_final_stats=1".to_owned(),
                ]),
        )?;
    }
    Ok(())
}

fn fuzz() -> Command {
    let mut command = cargo();
    command.current_dir(root().join("fuzz")).arg("fuzz");
    command
}
