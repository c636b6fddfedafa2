//! `rdzv completions` and `torchrun --print-completion`.

use std::process::ExitCode;

use clap::Command;
use clap_complete::{Shell, generate};

use crate::terminal::show;

/// Prints the completion script of a program for a shell.
pub(crate) fn print(mut command: Command, program: &str, shell: &str) -> ExitCode {
    let script = match shell.parse::<Shell>() {
        Ok(shell) => {
            let mut script = Vec::new();
            generate(shell, &mut command, program, &mut script);
            String::from_utf8_lossy(&script).into_owned()
        }
        Err(_) => tcsh(&mut command, program),
    };
    show(&script)
}

/// clap has no generator for tcsh, whose completions are one line: which words may follow what.
fn tcsh(command: &mut Command, program: &str) -> String {
    command.build();
    let mut names = Vec::new();
    let mut values = String::new();
    for option in command.get_arguments() {
        let Some(long) = option.get_long() else {
            continue;
        };
        names.push(long.to_owned());
        let choices: Vec<String> = option
            .get_possible_values()
            .iter()
            .map(|choice| choice.get_name().to_owned())
            .collect();
        // Switches have the choices true and false in clap's table, but take no value.
        if option.get_action().takes_values() && !choices.is_empty() {
            values += &format!(" 'n/--{long}/({})/'", choices.join(" "));
        }
    }
    let commands: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
    let words = if commands.is_empty() {
        "f".to_owned()
    } else {
        format!("({})", commands.join(" "))
    };
    format!(
        "complete {program}{values} 'c/--/({})/' 'p/*/{words}/'\n",
        names.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Launcher};

    #[test]
    fn tcsh_completes_names_and_choices() {
        let line = tcsh(&mut args::command(Launcher::Torchrun), "torchrun");
        assert!(line.starts_with("complete torchrun "), "{line}");
        assert!(line.contains(" 'n/--start-method/(spawn fork forkserver)/'"));
        assert!(
            line.contains("'c/--/(help nnodes nproc-per-node "),
            "{line}"
        );
        assert!(!line.contains("--standalone/(true"), "{line}");
        assert!(line.ends_with(" 'p/*/f/'\n"), "{line}");
    }
}
