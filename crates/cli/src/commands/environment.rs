//! `rdzv env`: every environment variable that is read or set.

use std::process::ExitCode;

use rdzv_core::env;

use crate::args::{Launcher, command, variable};
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
    for option in command(Launcher::Torchrun).get_arguments() {
        if let (Some(name), Some(flag)) = (variable(option), option.get_long()) {
            text += &format!("  {name:<32} --{flag}\n");
        }
    }
    text
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
