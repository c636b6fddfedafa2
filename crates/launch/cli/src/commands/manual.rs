//! `rdzv man DIR`: generates the manual pages from the table of the flags.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};

use crate::exit::Exit;
use crate::terminal::{complain, show};

/// Write the manual pages of all commands into a directory.
///
/// `rdzv man ~/.local/share/man/man1` makes `man rdzv-run` work for this user.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Directory for rdzv.1, rdzv-run.1 and so on; created if it does not exist.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes the pages of the command and its subcommands, and prints their paths.
pub(super) fn run(arguments: &ManArgs, command: Command) -> ExitCode {
    let directory = &arguments.directory;
    match write(directory, command) {
        Ok(paths) => {
            let lines = paths.iter().map(|path| format!("{}\n", path.display()));
            show(&lines.collect::<String>())
        }
        Err(error) => {
            complain(&format!(
                "rdzv man: cannot write the manual pages to {}: {error}",
                directory.display()
            ));
            Exit::Failure.into()
        }
    }
}

fn write(directory: &Path, command: Command) -> io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory)?;
    let command = command.disable_help_subcommand(true);
    clap_mangen::generate_to(command, directory)?;
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("rdzv") && name.ends_with(".1")
    });
    paths.sort();
    Ok(paths)
}
