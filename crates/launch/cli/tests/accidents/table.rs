//! `docs/accidents.md`.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rdzv_agent::host;

use crate::scenes::SCENES;
use crate::stage::{Launcher, Screen, play};

/// Names the environment with PyTorch.
pub(crate) const ENVIRONMENT: &str = "RDZV_TORCH_ENVIRONMENT";

const HEAD: &str = "\
# Usual accidents

The end of a terminal of 80 columns and 24 rows after twelve usual accidents, with two workers, under `torchrun` 2.15 and under
`rdzv run`. Made by `cargo xtask accidents`; a test looks at the same screens of rdzv, with 2 and with 24 workers, for the
cause, the first rank that failed and what to try. The scripts are plain: none has
torchelastic's `@record`, with which `torchrun` shows the traceback of an exception. A cause that has left the 24 rows is not on the
screen.
";

/// Plays all accidents under both launchers and writes the page.
pub(crate) fn make(environment: &Path) {
    // Tracebacks of torchrun have its path in them.
    let link = Path::new("/tmp/venv");
    symlink(environment, link).expect("/tmp/venv is there already: move it away, and run it again");
    let launchers = [Launcher::torchrun(link), Launcher::rdzv_with(link)];
    let mut table = String::from(
        "\n| accident | cause on torchrun's screen | its lines | cause on rdzv's | its lines | rdzv: rank or node, advice |\n\
         |---|---|---:|---|---:|---|\n",
    );
    let mut screens = String::new();
    for scene in &SCENES {
        let [torchrun, rdzv] = launchers
            .each_ref()
            .map(|launcher| play(scene, launcher, 2));
        let yes_or_no = |is: bool| if is { "yes" } else { "no" };
        let own = rdzv.text();
        let name = scene.name;
        // Writing to a String cannot fail.
        let _ = writeln!(
            table,
            "| {name} | {} | {} | {} | {} | {}, {} |",
            yes_or_no(torchrun.has(scene.under_torchrun)),
            torchrun.lines,
            yes_or_no(own.contains(scene.cause)),
            rdzv.lines,
            yes_or_no(own.contains(scene.who)),
            yes_or_no(own.contains(scene.remedy)),
        );
        let _ = write!(
            screens,
            "\n## {name}\n\n{}\n{}",
            shown("torchrun", &torchrun),
            shown("rdzv run", &rdzv)
        );
    }
    fs::remove_file(link).unwrap();
    let page = format!("{HEAD}{table}{screens}");
    fs::write(path(), page).unwrap();
}

/// The page as it is.
pub(crate) fn page() -> String {
    fs::read_to_string(path()).unwrap()
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../docs/accidents.md")
}

/// The screen as a block of text, with other names for what this machine is called.
fn shown(launcher: &str, screen: &Screen) -> String {
    let ended = match screen.code {
        Some(code) => format!("exit code {code}"),
        None => "it had not ended after 45 s".to_owned(),
    };
    let rows = screen.rows.join("\n");
    let rows = match std::env::var("HOME") {
        Ok(home) if home.len() > 1 => rows.replace(&home, "~"),
        _ => rows,
    };
    let full = host::full_name();
    let rows = rows.replace(&full, "node-a");
    format!("`{launcher}`, {ended}:\n\n```text\n{rows}\n```\n")
}
