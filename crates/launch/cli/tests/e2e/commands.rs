//! Tests of the workers' command, and of commands that print information.

use crate::harness::{rdzv, torchrun};

// SCN-A16
#[test]
fn a_program_is_executed_without_python() {
    let ended = torchrun(["--no-python", "/bin/echo", "hi", "${local_rank}"]).expect(0);
    assert_eq!(ended.stdout, "hi 0\n");
}

// SCN-A17
#[test]
fn the_interpreter_can_be_chosen() {
    for (line, words) in [
        (&["s.py", "a"][..], "-u s.py a\n"),
        (&["-m", "pkg.mod", "a"], "-u -m pkg.mod a\n"),
    ] {
        let job = torchrun(line).env("PYTHON_EXEC", "/bin/echo");
        assert_eq!(job.expect(0).stdout, words);
    }
}

// SCN-A18
#[test]
fn the_older_launcher_passes_the_local_rank_before_the_scripts_arguments() {
    let job = || {
        rdzv(["launch-compat", "--nproc-per-node", "2"]).file(
            "s.py",
            "import sys; sys.stdout.write(' '.join(sys.argv[1:]) + '\\n')",
        )
    };
    let ended = job().args(["s.py", "--foo"]).expect(0);
    assert_eq!(
        ended.sorted(),
        ["--local-rank=0 --foo", "--local-rank=1 --foo"]
    );
    assert!(
        ended.stderr.starts_with("FutureWarning: "),
        "{}",
        ended.stderr
    );
    let ended = job().args(["--use_env", "s.py", "--foo"]).expect(0);
    assert_eq!(ended.sorted(), ["--foo", "--foo"]);
    let ended = job().args(["--no-python", "s.py"]).expect(1);
    assert_eq!(
        ended.last_error_line(),
        "ValueError: When using the '--no-python' flag, you must also set the '--use-env' flag."
    );
}

#[test]
fn python_runs_scripts_and_modules() {
    let script = "import sys, os\nprint(__name__, sys.argv, os.environ['RANK'], flush=False)\n";
    let ended = rdzv(["run", "s.py", "a", "--x=1"])
        .file("s.py", script)
        .expect(0);
    assert_eq!(ended.stdout, "__main__ ['s.py', 'a', '--x=1'] 0\n");
    let ended = rdzv(["run", "-m", "s", "a"]).file("s.py", script).expect(0);
    assert!(ended.stdout.starts_with("__main__ ['/"), "{}", ended.stdout);
    assert!(
        ended.stdout.ends_with("/s.py', 'a'] 0\n"),
        "{}",
        ended.stdout
    );
}

#[test]
fn a_script_that_does_not_exist_fails_as_the_interpreter_does() {
    let ended = rdzv(["run", "no-such-script.py"]).expect(1);
    ended.assert_stderr("No such file or directory");
    ended.assert_stderr("no-such-script.py FAILED");
    ended.assert_stderr("exitcode  : 2 (pid: ");
}

#[test]
fn run_path_gives_the_script_its_own_arguments_and_directory() {
    let ended = rdzv(["run", "--run-path", "s.py", "a", "$$b"])
        .file("beside.py", "word = 'beside'")
        .file(
            "s.py",
            "import sys, beside\nprint(__name__, sys.argv, beside.word)\n",
        )
        .expect(0);
    assert_eq!(ended.stdout, "__main__ ['s.py', 'a', '$b'] beside\n");
}

#[test]
fn run_path_keeps_a_worker_that_has_returned_while_others_of_the_node_run() {
    let script = "\
import atexit, os, time
def note(text):
    with open('notes', 'a') as file:
        file.write(text + '\\n')
if os.environ['RANK'] == '0':
    note('0 returns')
    atexit.register(note, '0 ends')
else:
    # Longer than worker 0 needs to end if it does not wait for this one.
    until = time.monotonic() + 2
    while '0 ends' not in (os.path.exists('notes') and open('notes').read() or '') and time.monotonic() < until:
        time.sleep(0.02)
    note('1 returns')
";
    let flags = ["run", "--run-path", "--nproc-per-node=2"];
    let ended = rdzv(flags).args(["s.py"]).file("s.py", script).expect(0);
    let notes = ended.text("notes");
    assert_eq!(notes, "0 returns\n1 returns\n0 ends\n", "{}", ended.stderr);
}

#[test]
fn run_path_ends_although_a_worker_ended_without_returning() {
    let script = "\
import os
if os.environ['RANK'] == '1':
    os._exit(0)
";
    let flags = ["run", "--run-path", "--nproc-per-node=3", "s.py"];
    rdzv(flags).file("s.py", script).expect(0);
}

#[test]
fn run_path_records_the_exception_of_the_script() {
    let ended = rdzv(["run", "--run-path", "--log-dir", "logs", "s.py"])
        .file(
            "s.py",
            "def main():\n    raise ValueError('boom')\nmain()\n",
        )
        .expect(1);
    ended.assert_stderr("\nrun_script_path FAILED\n");
    ended.assert_stderr(
        "  traceback : Traceback (most recent call last):\n    File \"s.py\", line 3,",
    );
    ended.assert_stderr("\n  ValueError: boom\n  \n===");
    let text = ended.content("logs", "attempt_0/0/error.json");
    let content: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(content["message"]["message"], "ValueError: boom");
}

#[test]
fn run_path_leaves_exit_codes_alone() {
    let ended = rdzv(["run", "--run-path", "--log-dir", "logs", "s.py"])
        .file("s.py", "import sys; sys.exit(3)\n")
        .expect(1);
    ended.assert_stderr("exitcode  : 3 (pid: ");
    ended.assert_stderr("error_file: <N/A>");
}

#[test]
fn help_goes_to_stdout_under_the_name_it_was_asked_of() {
    for flag in ["-h", "--help", "--he"] {
        let ended = torchrun([flag]).expect(0);
        ended.assert_stdout("Usage: torchrun [OPTIONS]");
        assert_eq!(ended.stderr, "");
    }
    let ended = rdzv(["run", "--help"]).expect(0);
    ended.assert_stdout("Usage: rdzv run [OPTIONS]");
    let ended = rdzv(["--help"]).expect(0);
    ended.assert_stdout("  store ");
    let ended = rdzv::<&str>([]).expect(2);
    assert_eq!(ended.stdout, "");
    ended.assert_stderr("Usage: rdzv <COMMAND>");
}

#[test]
fn the_version_is_printed() {
    let ended = rdzv(["--version"]).expect(0);
    assert_eq!(
        ended.stdout,
        format!("rdzv {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn completion_scripts_are_printed_for_each_shell() {
    for (shell, sign) in [
        ("bash", "complete -F _torchrun"),
        ("zsh", "#compdef torchrun"),
        ("tcsh", "complete torchrun "),
    ] {
        let ended = torchrun(["--print-completion", shell]).expect(0);
        ended.assert_stdout(sign);
        ended.assert_stdout("nproc-per-node");
    }
    let ended = rdzv(["completions", "fish"]).expect(0);
    ended.assert_stdout("complete -c rdzv");
}

#[test]
fn a_link_named_torchrun_is_made_and_never_overwrites() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("torchrun");
    let make = || rdzv(["link", "--dir", directory.path().to_str().unwrap()]).run();
    let ended = make().expect(0);
    let program = std::fs::read_link(&link).unwrap();
    let (name, target) = (link.display(), program.display());
    assert_eq!(
        ended.stdout,
        format!("created a link from {name} to {target}\n")
    );
    let help = std::process::Command::new(&link).arg("--help").output();
    assert!(String::from_utf8_lossy(&help.unwrap().stdout).contains("torchrun "));
    // Even a dangling link is not overwritten.
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("/nowhere", &link).unwrap();
    let ended = make().expect(1);
    let said = format!(
        "rdzv link: {name} already exists; remove it, or specify another directory with --dir\n"
    );
    assert_eq!(ended.stderr, said);
    let target = std::fs::read_link(&link).unwrap();
    assert_eq!(target.to_str(), Some("/nowhere"));
    let ended = rdzv(["link", "--dir", "/no/such/folder"]).expect(1);
    ended.assert_last_error("rdzv link: cannot create /no/such/folder/torchrun: ", &[]);
}

#[test]
fn variables_are_listed() {
    let ended = rdzv(["env"]).expect(0);
    ended.assert_stdout("  MASTER_ADDR\n");
}

#[test]
fn topics_commands_and_their_typos_have_help() {
    for (line, text) in [
        (&["help"][..], "\n  exit-codes "),
        (&["help", "exit-codes"], "# Exit codes\n"),
        (&["help", "run"], "\nRendezvous of the nodes:\n"),
        (&["help", "launch-compat"], "[env: PET_NNODES"),
        (&["help", "store"], "--max-keys"),
    ] {
        rdzv(line).expect(0).assert_stdout(text);
    }
    let ended = rdzv(["help", "exit-code"]).expect(2);
    assert_eq!(
        ended.stderr,
        "rdzv help: topic 'exit-code' does not exist (did you mean 'exit-codes'?); `rdzv help` lists the topics\n"
    );
}

#[test]
fn manual_pages_have_every_flag() {
    let ended = rdzv(["man", "pages"]).expect(0);
    let page = |name: &str| ended.text(&format!("pages/{name}"));
    ended.assert_stdout("pages/rdzv-run.1\n");
    assert!(page("rdzv.1").starts_with(".ie"), "{}", page("rdzv.1"));
    let run = page("rdzv-run.1");
    let help = rdzv(["run", "--help"]).expect(0).stdout;
    for line in help.lines().filter(|line| line.starts_with("      --")) {
        let name = line.trim().split([' ', '=', '[']).next().unwrap();
        let escaped = name.replace('-', "\\-");
        assert!(run.contains(&escaped), "{name}");
    }
    assert!(
        run.contains(".SH \"RENDEZVOUS OF THE NODES\"") || run.contains("Rendezvous of the nodes"),
        "{run}"
    );
}
