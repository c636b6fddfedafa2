//! `rdzv completions` and `torchrun --print-completion`.

use std::process::ExitCode;

use clap::{Command, ValueHint};
use clap_complete::{Shell, generate};

use crate::terminal::show;

/// Named values of flags for which clap's table lists none.
const VALUES: [(&str, &[&str]); 8] = [
    ("nproc_per_node", &["cpu", "gpu", "xpu", "auto"]),
    ("rdzv_backend", &["static", "c10d", "etcd", "etcd-v2"]),
    ("hang_action", &["report", "restart", "fail"]),
    ("exit_code", &["launcher", "worker"]),
    (
        "event_log_handler",
        &["null", "console", "dynamic_rendezvous"],
    ),
    ("metrics_handler", &["null", "console"]),
    ("redirects", &["0", "1", "2", "3"]),
    ("tee", &["0", "1", "2", "3"]),
];

/// Flags whose values are file paths, directory paths or host names.
const HINTS: [(ValueHint, &[&str]); 3] = [
    (
        ValueHint::FilePath,
        &[
            "report",
            "events_file",
            "token_file",
            "tls_cert",
            "tls_key",
            "tls_ca",
            "training_script",
        ],
    ),
    (ValueHint::DirPath, &["log_dir"]),
    (
        ValueHint::Hostname,
        &["rdzv_endpoint", "master_addr", "local_addr"],
    ),
];

/// Returns the command with the values of its flags, for completions.
pub(super) fn with_values(command: Command) -> Command {
    command.mut_args(|option| {
        let id = option.get_id().as_str();
        let values = VALUES.iter().find(|(known, _)| *known == id);
        let hint = HINTS.iter().find(|(_, ids)| ids.contains(&id));
        let option = match values {
            Some((_, values)) => option.value_parser(values.to_vec()),
            None => option,
        };
        match hint {
            Some((hint, _)) => option.value_hint(*hint),
            None => option,
        }
    })
}

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

/// Returns the completions for tcsh, for which clap has no generator.
///
/// The script is one line of rules for the words that can follow one another.
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
        // A switch has the choices true and false in clap's table, but takes no value.
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
    fn shells_complete_values() {
        let mut command = with_values(args::command(Launcher::Run));
        for (id, values) in VALUES {
            let option = command.get_arguments().find(|option| option.get_id() == id);
            let choices = option.unwrap().get_possible_values();
            assert_eq!(choices.len(), values.len(), "{id}");
        }
        for (_, ids) in HINTS {
            for id in ids {
                assert!(
                    command.get_arguments().any(|option| option.get_id() == *id),
                    "{id}"
                );
            }
        }
        let mut script = Vec::new();
        generate(Shell::Bash, &mut command, "rdzv", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(
            script.contains("compgen -W \"static c10d etcd etcd-v2\""),
            "{script}"
        );
    }

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
