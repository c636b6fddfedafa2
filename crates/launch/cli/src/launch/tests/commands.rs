//! Tests of the command that workers execute.

use std::ffi::OsString;

use super::{Case, case, warnings};
use crate::exit::Refusal;

#[test]
fn commands_are_built_as_the_mode_says() {
    let words = |case: &Case| {
        let entrypoint = case.launch().plan.entrypoint;
        let mut words = vec![entrypoint.program.into_string().unwrap()];
        let text = |word: OsString| word.into_string().unwrap();
        words.extend(entrypoint.arguments.into_iter().map(text));
        (words, entrypoint.name)
    };
    let (line, name) = words(&case(&["s.py", "a"]));
    assert_eq!(line, ["/usr/bin/python3", "-u", "s.py", "a"]);
    assert_eq!(name, "s.py");
    let (line, name) = words(&case(&["-m", "pkg.mod", "a"]));
    assert_eq!(line, ["/usr/bin/python3", "-u", "-m", "pkg.mod", "a"]);
    assert_eq!(name, "pkg.mod");
    let (line, name) = words(&case(&["--no-python", "echo", "hi"]));
    assert_eq!(line, ["echo", "hi"]);
    assert_eq!(name, "echo");
    let (line, name) = words(&case(&["--run-path", "--no-python", "s.py", "a"]));
    assert_eq!(line[..3], ["/usr/bin/python3", "-u", "-c"]);
    assert_eq!(line[4..], ["s.py", "a"]);
    assert!(!line[3].contains('$'), "arguments are templates");
    assert_eq!(name, "run_script_path");
    let mut legacy = case(&["s.py", "--foo"]);
    legacy.called.local_rank_argument = true;
    let (line, _) = words(&legacy);
    assert_eq!(
        line,
        [
            "/usr/bin/python3",
            "-u",
            "s.py",
            "--local-rank=${local_rank}",
            "--foo"
        ]
    );
}

#[test]
fn the_interpreter_is_the_one_of_the_users_environment() {
    let program = |case: Case| case.launch().plan.entrypoint.program;
    let link_in = |directory: &str| {
        let mut case = case(&["s.py"]);
        case.called.beside = Some(directory.into());
        case.files(&[
            "/venv/bin/python3",
            "/active/bin/python3",
            "/usr/local/bin/python3",
            "/venv/bin/../pyvenv.cfg",
        ])
    };
    assert_eq!(
        program(link_in("/venv/bin").with("PYTHON_EXEC", "my-python")),
        "my-python"
    );
    assert_eq!(
        program(link_in("/venv/bin").with("VIRTUAL_ENV", "/active")),
        "/venv/bin/python3"
    );
    assert_eq!(
        program(link_in("/usr/local/bin").with("VIRTUAL_ENV", "/active")),
        "/active/bin/python3"
    );
    assert_eq!(program(link_in("/usr/local/bin")), "/usr/local/bin/python3");
    assert_eq!(program(link_in("/nowhere")), "/usr/local/bin/python3");
    let installed = |package: &'static str| {
        let mut case = case(&["s.py"]);
        case.called.own = Some("/tool/bin".into());
        case.files(&["/usr/bin/python3", "/tool/bin/python3", package])
    };
    let alone = "/tool/lib/python3.12/site-packages/rdzv-0.1.0.dist-info/METADATA";
    let more = "/tool/lib/python3.12/site-packages/torch-2.15.0.dist-info/METADATA";
    assert_eq!(program(installed(alone)), "/usr/bin/python3");
    assert_eq!(program(installed(more)), "/tool/bin/python3");
    assert_eq!(
        program(installed(more).with("VIRTUAL_ENV", "/tool2")),
        "/usr/bin/python3"
    );
    let none = case(&["s.py"]).with("PATH", "/empty").refusal();
    assert!(
        none.to_string()
            .starts_with("FileNotFoundError: no Python interpreter"),
        "{none}"
    );
}

#[test]
fn modules_are_imported_once_only_for_a_known_interpreter() {
    let preload = |line: &[&'static str]| case(&[&["--preload"], line].concat()).launch();
    let launch = preload(&["torch, my.own_module,", "--run-path", "s.py"]);
    assert_eq!(launch.plan.preload, ["torch", "my.own_module"]);
    let launch = preload(&["torch", "--no-python", "echo"]);
    assert_eq!(launch.plan.preload, [""; 0]);
    let warning = "--preload has no effect with --no-python";
    assert_eq!(warnings(&launch), [warning]);
    for wrong in ["a;b", "1a", "a..b", "train.py/", ".a"] {
        let refusal = case(&["--preload", wrong, "s.py"]).refusal();
        let problem = format!("'{wrong}' is not the name of a Python module");
        assert_eq!(refusal, Refusal::argument("--preload", &problem));
    }
}
