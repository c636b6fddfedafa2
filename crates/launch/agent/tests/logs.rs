//! Where the workers' output goes, and how it looks on the console.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

mod harness;

use std::fs;
use std::path::{Path, PathBuf};

use harness::{Ended, start, start_after};

/// The only run directory below `$DIR/logs`.
fn run_directory(ended: &Ended) -> PathBuf {
    let runs: Vec<_> = fs::read_dir(ended.directory.path().join("logs"))
        .unwrap()
        .map(|run| run.unwrap().path())
        .collect();
    assert_eq!(runs.len(), 1);
    let name = runs[0].file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("none_") && name.len() == 13, "{name}");
    runs[0].clone()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `options`, with logs below `$DIR/logs`: the harness's own shell fills that in.
fn logged(options: &[&str], script: &str) -> Ended {
    let mut all = vec!["logs=logs"];
    all.extend(options);
    start_after("cd $DIR", &all, script).end()
}

#[test]
fn redirected_output_is_in_files_and_not_on_the_console() {
    let ended = logged(
        &["workers=2", "redirect=3"],
        "echo out $RANK; echo err $RANK >&2; echo \"$TORCHELASTIC_ERROR_FILE\" > $DIR/e$RANK",
    );
    assert_eq!(ended.stdout, "");
    assert!(ended.all("err").is_empty());
    let run = run_directory(&ended);
    for rank in 0..2 {
        let directory = run.join(format!("attempt_0/{rank}"));
        assert_eq!(text(&directory.join("stdout.log")), format!("out {rank}\n"));
        assert_eq!(text(&directory.join("stderr.log")), format!("err {rank}\n"));
        let error_file = text(&ended.directory.path().join(format!("e{rank}")));
        assert!(
            error_file
                .trim()
                .ends_with(&format!("attempt_0/{rank}/error.json"))
        );
    }
}

#[test]
fn the_run_directory_is_for_its_owner_only_and_keeps_every_attempt() {
    use std::os::unix::fs::PermissionsExt;
    let ended = logged(
        &["redirect=1", "restarts=2"],
        "echo $TORCHELASTIC_RESTART_COUNT; exit 1",
    );
    let run = run_directory(&ended);
    assert_eq!(run.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    for attempt in 0..3 {
        let log = run.join(format!("attempt_{attempt}/0/stdout.log"));
        assert_eq!(text(&log), format!("{attempt}\n"));
    }
}

#[test]
fn teed_output_is_in_files_and_with_prefixes_on_the_matching_stream() {
    let ended = logged(
        &[
            "workers=2",
            "tee=3",
            "role=tr",
            "prefix=<${role_name}/${local_rank}/${rank}/${bogus}> ",
        ],
        "echo out; echo err >&2",
    );
    let mut out: Vec<_> = ended.stdout.lines().collect();
    out.sort_unstable();
    assert_eq!(out, ["<tr/0/0/${bogus}> out", "<tr/1/1/${bogus}> out"]);
    let mut err = ended.all("<tr");
    err.sort_unstable();
    assert_eq!(err, ["/0/0/${bogus}> err", "/1/1/${bogus}> err"]);
    let run = run_directory(&ended);
    assert_eq!(text(&run.join("attempt_0/1/stderr.log")), "err\n");
}

#[test]
fn lines_of_several_workers_are_never_torn() {
    let script = "for i in 1 2 3 4 5 6 7 8; do
        printf 'begin%s ' $RANK; sleep 0.01; printf 'middle%s ' $RANK; sleep 0.01; echo end$RANK
        done";
    let ended = logged(&["workers=3", "tee=1"], script);
    assert_eq!(ended.stdout.lines().count(), 24);
    for line in ended.stdout.lines() {
        let rank = &line[8..9];
        assert_eq!(
            line,
            format!("[default{rank}]:begin{rank} middle{rank} end{rank}")
        );
    }
}

#[test]
fn a_line_without_an_end_is_shown_while_the_worker_waits() {
    let script = "if test $RANK = 0; then printf 'name? ' >&2; read go < $DIR/go; echo thanks >&2
        else sleep 5; echo other >&2; fi";
    let mut harness = start_after(
        "mkfifo $DIR/go; cd $DIR",
        &["logs=logs", "tee=2", "workers=2"],
        script,
    );
    // The other worker speaks while the question stands there, which must not glue the two.
    assert_eq!(harness.wait_for("[default0]:"), "name? ");
    assert_eq!(harness.wait_for("[default1]:"), "other");
    fs::write(harness.directory.path().join("go"), "x\n").unwrap();
    let ended = harness.end();
    // The question again, because it was interrupted.
    ended.assert_said("[default0]:name? thanks");
}

#[test]
fn the_last_line_gets_its_newline_and_nothing_is_lost_at_the_end() {
    let ended = logged(
        &["workers=2", "tee=1"],
        "seq 2000; printf 'no newline'; exit $RANK",
    );
    for rank in 0..2 {
        let prefix = format!("[default{rank}]:");
        let lines: Vec<&str> = ended
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix(prefix.as_str()))
            .collect();
        if lines.len() == 2001 {
            assert_eq!(lines[2000], "no newline");
        } else {
            // Rank 1 fails and may take rank 0 with it; what it wrote until then is there.
            assert_eq!(rank, 0);
        }
    }
    assert!(ended.stdout.ends_with('\n'));
}

#[test]
fn carriage_returns_and_bad_bytes_do_not_break_lines() {
    let ended = logged(&["tee=1"], r"printf 'a\r\nb\rc\377d\n'");
    assert_eq!(
        ended.stdout,
        "[default0]:a\n[default0]:b\n[default0]:c\u{fffd}d\n"
    );
}

#[test]
fn a_flood_arrives_whole() {
    let script = "yes \"$RANK abcdefghijklmnopqrstuvwxyz\" | head -n 200000";
    let ended = logged(&["workers=2", "tee=1"], script);
    let mut counts = [0, 0];
    let mut begun = 0;
    for line in ended.stdout.lines() {
        let rank = usize::from(line.as_bytes()[8] - b'0');
        let whole = format!("[default{rank}]:{rank} abcdefghijklmnopqrstuvwxyz");
        if line == whole {
            counts[rank] += 1;
        } else {
            // A writer that the machine stops in the middle of a line is not waited for: the beginning is
            // shown, and shown again with the rest.
            assert!(whole.starts_with(line), "{line}");
            begun += 1;
        }
    }
    assert_eq!(counts, [200_000, 200_000]);
    assert!(begun < 100, "{begun} lines were shown in parts");
}

#[test]
fn workers_off_the_console_lose_nothing_and_filters_copy_lines() {
    let script = "echo out $RANK; echo other; echo hidden $RANK >&2
        if test $RANK = 0; then echo > $DIR/go; else read go < $DIR/go; exit 1; fi";
    let options = [
        "workers=2",
        "tee=1",
        "console=1",
        "filter=out,bad",
        "logs=logs",
    ];
    let ended = start_after("mkfifo $DIR/go; cd $DIR", &options, script).end();
    assert!(
        ended
            .stdout
            .lines()
            .all(|line| line.starts_with("[default1]:"))
    );
    assert!(!ended.said.iter().any(|line| line == "hidden 0"));
    let attempt = run_directory(&ended).join("attempt_0");
    assert_eq!(
        text(&attempt.join("filtered_stdout.log")),
        "[default1]:out 1\n"
    );
    assert_eq!(text(&attempt.join("0/stdout.log")), "out 0\nother\n");
    assert_eq!(text(&attempt.join("0/kept_stderr.log")), "hidden 0\n");
}

#[test]
fn without_a_log_directory_everything_is_on_the_console() {
    let ended = start(
        &["logs=none", "tee=3"],
        "echo out; echo \"file <$TORCHELASTIC_ERROR_FILE>\"",
    )
    .end();
    assert_eq!(ended.stdout, "out\nfile <>\n");
    assert_eq!(fs::read_dir(ended.directory.path()).unwrap().count(), 0);
}

#[test]
fn a_reader_that_goes_away_stops_nobody() {
    let script = "seq 100000; echo done > $DIR/done";
    let first = "exec 3>&1; exec > $DIR/closed; mkfifo $DIR/console
        (head -n 1 < $DIR/console >&3) & exec > $DIR/console; cd $DIR";
    let ended = start_after(first, &["logs=logs", "tee=1"], script).end();
    assert_eq!(ended.code(), Some(0), "{:#?}", ended.said);
    assert_eq!(ended.stdout, "[default0]:1\n");
    assert_eq!(text(&ended.directory.path().join("done")), "done\n");
}
