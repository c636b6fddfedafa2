//! Tests of the workers' lines: whole, labelled, coloured, collapsed if equal.

use crate::job::{has, run_python, run_shell};

/// Shell code that waits until all four workers have started.
const TOGETHER: &str = "touch here$RANK; until [ -e here0 -a -e here1 -a -e here2 -a -e here3 ]; do sleep 0.01; done; ";

#[test]
fn tracebacks_of_several_workers_are_whole() {
    // Each worker writes its lines slowly, so that lines of other workers interleave with them.
    let script = "
import os, sys, time, traceback
rank = int(os.environ['RANK'])
def one(depth): two(depth - 1) if depth else fail()
def two(depth): one(depth)
def fail(): raise RuntimeError(f'shard {rank} is missing')
open(f'here{rank}', 'w')
while not all(os.path.exists(f'here{other}') for other in range(4)): time.sleep(0.01)
try:
    one(10)
except RuntimeError:
    for line in traceback.format_exc().splitlines():
        print(line, file=sys.stderr)
        time.sleep(0.004)
";
    let lines = run_python("--nproc-per-node 4", script)
        .start_on(120, 40)
        .lines_of_success();
    for rank in 0..4 {
        let label = format!("[{rank}] ");
        let first = format!("{label}Traceback (most recent call last):");
        let last = format!("{label}RuntimeError: shard {rank} is missing");
        let at = |line: &String| lines.iter().position(|other| other == line);
        let (begin, end) = (at(&first).unwrap(), at(&last).unwrap());
        let whole = lines[begin..end]
            .iter()
            .all(|line| line.starts_with(&label));
        assert!(whole && end - begin > 40, "{}", lines.join("\n"));
    }
}

#[test]
fn equal_lines_of_workers_are_one() {
    let script =
        format!("{TOGETHER} echo the same; [ $RANK = 2 ] && echo alone; echo again; sleep 0.5");
    let lines = run_shell("--nproc-per-node 4", &script)
        .start()
        .lines_of_success();
    for line in ["[0-3] the same", "[2] alone", "[0-3] again"] {
        assert!(has(&lines, line), "{line}: {lines:?}");
    }
}

#[test]
fn characters_line_ends_and_colours_arrive() {
    let script = r#"printf 'crlf %s\r\n\360\237\230\200 \303\244 %s\n\033[31mred\033[0m plain %s\n' $RANK $RANK $RANK; printf 'no end %s' $RANK"#;
    let mut run = run_shell("--nproc-per-node 2", script).start();
    assert!(run.wait().success());
    let lines = run.lines();
    for line in [
        "[0] crlf 0",
        "[1] crlf 1",
        "[1] \u{1f600} \u{e4} 1",
        "[0] red plain 0",
        "[0] no end 0",
    ] {
        assert!(has(&lines, line), "{line}: {lines:?}");
    }
    let raw = String::from_utf8(run.raw()).unwrap();
    assert!(raw.contains("\u{1b}[31mred\u{1b}[0m plain"), "{raw:?}");
    assert!(raw.contains("\u{1b}[36m[0]\u{1b}[0m crlf 0"), "{raw:?}");
}

#[test]
fn no_color_leaves_the_colours_to_the_workers() {
    let run = run_shell(
        "--nproc-per-node 2",
        "printf '\\033[31mred\\033[0m %s\\n' $RANK",
    )
    .env("NO_COLOR", "1");
    let mut run = run.start();
    assert!(run.wait().success());
    let raw = String::from_utf8(run.raw()).unwrap();
    assert!(raw.contains("[0] \u{1b}[31mred\u{1b}[0m 0"), "{raw:?}");
    assert!(!raw.contains("\u{1b}[36m"), "{raw:?}");
}

#[test]
fn on_a_dumb_terminal_there_are_lines_only() {
    let script =
        "printf '\\r 10%%\\r 50%%\\r100%%\\n'; echo line $RANK; printf 'prompt? '; sleep 2; echo";
    for (flags, term) in [
        (&["--nproc-per-node", "2"][..], "dumb"),
        (&["--nproc-per-node", "2", "--ui", "plain"], "xterm"),
    ] {
        let mut run = run_shell(flags, script).env("TERM", term).start();
        run.wait_for_text("prompt?");
        assert!(run.wait().success());
        let raw = String::from_utf8(run.raw()).unwrap();
        assert!(raw.contains("line 0") && raw.contains("100%"), "{raw:?}");
        assert!(
            !raw.contains("\u{1b}[?2026h") && !raw.contains("running"),
            "{raw:?}"
        );
        assert!(term != "dumb" || !raw.contains('\u{1b}'), "{raw:?}");
    }
}

#[test]
fn a_worker_cannot_reach_what_is_not_its_own() {
    let script =
        r"printf 'kept %s\n' $RANK; printf '\033[2J\033[H\033[5A\033]0;title\007gone? %s\n' $RANK";
    let mut run = run_shell("--nproc-per-node 2", script).start();
    assert!(run.wait().success());
    let lines = run.lines();
    assert!(
        has(&lines, "[0] kept 0") && has(&lines, "[1] gone? 1"),
        "{lines:?}"
    );
    assert!(!String::from_utf8(run.raw()).unwrap().contains("\u{1b}[2J"));
}

#[test]
fn ui_live_needs_a_terminal() {
    let run = crate::job::shell(&[
        "-c",
        "$RDZV run --ui live --no-python true 2>&1 | cat; echo ${PIPESTATUS[0]}",
    ]);
    let lines = run.start().lines_of_success();
    assert!(has(&lines, "2"), "{lines:?}");
    assert!(lines.join("").contains("--ui"), "{lines:?}");
}
