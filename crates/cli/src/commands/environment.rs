//! `rdzv env`: every environment variable that is read or set.

use std::process::ExitCode;

use clap::Command;
use rdzv_core::env;

use crate::args::RunArgs;
use crate::args::conventions::variable;
use crate::args::parse::command;
use crate::terminal::show;

/// Prints the reference of variables.
pub(crate) fn print() -> ExitCode {
    show(&reference())
}

fn reference() -> String {
    let mut text = String::from("Variables of workers and of the launcher:\n");
    for (name, meaning) in env::ALL {
        text += &format!("  {name}\n      {}\n", meaning.trim());
    }
    text += "\nDefaults of flags, overridden by the command line:\n";
    for (name, flag) in defaults(&command::<RunArgs>("torchrun")) {
        text += &format!("  {name:<32} --{flag}\n");
    }
    text
}

fn defaults(command: &Command) -> Vec<(String, String)> {
    command
        .get_arguments()
        .filter_map(|option| {
            let flag = option.get_long()?.to_owned();
            Some((variable(option)?, flag))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_workers_variables_and_flag_defaults() {
        let text = reference();
        for line in [
            "  LOCAL_RANK\n",
            "  PET_NPROC_PER_NODE               --nproc-per-node\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("PET_LOGS_SPECS"), "{text}");
    }
}
