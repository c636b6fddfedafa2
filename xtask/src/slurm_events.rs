//! `cargo xtask slurm-events`: plays the events in the life of a Slurm job under `rdzv run` and under `torchrun`, and writes
//! what was seen into `docs/slurm.md`. The events are those of `interop/slurm/events.py`.

use std::process::Command;

use anyhow::ensure;

use crate::command::{root, step};
use crate::{slurm, test};

pub(crate) fn run() -> anyhow::Result<()> {
    let has_groups = slurm::proctracks().contains(&"cgroup");
    ensure!(has_groups, "the table is about proctrack/cgroup");
    test::build(&[])?;
    let (python, programs) = test::interop_setting()?;
    let mut play = Command::new(python);
    play.current_dir(root().join("interop"))
        .args(["-m", "slurm.events"])
        .envs(programs);
    step("events in the life of a Slurm job", &mut play)
}
