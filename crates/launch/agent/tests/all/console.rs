//! What several writers make of one console: whole lines, of everybody, in order, and all of them.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::{Ended, start, start_after};

/// All files of that name below `$DIR`.
fn files(ended: &Ended, name: &str) -> Vec<PathBuf> {
    fn look(directory: &Path, name: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            if entry.path().is_dir() {
                look(&entry.path(), name, found);
            } else if entry.file_name() == name {
                found.push(entry.path());
            }
        }
    }
    let mut found = Vec::new();
    look(ended.directory.path(), name, &mut found);
    found.sort_unstable();
    found
}

#[test]
fn our_own_lines_do_not_get_into_an_unfinished_line_of_a_worker() {
    let script = "if test $RANK = 0; then printf 'name? ' >&2; read go < $DIR/go; echo thanks >&2
        else sleep 1; fi";
    let mut harness = start_after("mkfifo $DIR/go", &["tee=2", "workers=2"], script);
    // The other worker's end, an event, is said while the question stands there.
    assert_eq!(harness.wait_for("[default0]:"), "name? ");
    harness.wait_for("event exited local_rank=1");
    fs::write(harness.directory.path().join("go"), "x\n").unwrap();
    let ended = harness.end();
    // Whose line was interrupted says it again.
    ended.assert_said("[default0]:name? thanks");
}

#[test]
fn streams_and_our_lines_share_a_pipe_and_no_line_is_torn() {
    let script = "yes \"out $RANK abcdefghijklmnopqrstuvwxyz\" | head -n 50000 &
        yes \"err $RANK abcdefghijklmnopqrstuvwxyz\" | head -n 50000 >&2; wait
        if test $RANK = 1; then read go < $DIR/go; exit 1; fi; echo > $DIR/go";
    let options = ["tee=3", "workers=2", "restarts=3"];
    let ended = start_after("mkfifo $DIR/go; exec 2>&1", &options, script).end();
    const WHOLE: [&str; 4] = [
        "[default0]:out 0 abcdefghijklmnopqrstuvwxyz",
        "[default0]:err 0 abcdefghijklmnopqrstuvwxyz",
        "[default1]:out 1 abcdefghijklmnopqrstuvwxyz",
        "[default1]:err 1 abcdefghijklmnopqrstuvwxyz",
    ];
    let mut counts = [0; 5];
    for line in ended.stdout.lines() {
        if let Some(which) = WHOLE.iter().position(|whole| *whole == line) {
            counts[which] += 1;
        } else if !WHOLE.iter().any(|whole| whole.starts_with(line)) {
            // Else it is the beginning of a line whose worker took its time, and comes again whole.
            let ours = ["event ", "log ", "outcome ", "failure "];
            assert!(ours.iter().any(|word| line.starts_with(word)), "{line}");
            counts[4] += 1;
        }
    }
    assert_eq!(counts[..4], [200_000; 4]);
    assert!(counts[4] > 20, "{}", counts[4]);
    assert!(ended.stdout.ends_with("outcome failed root=1\n"));
}

#[test]
fn a_long_line_stays_whole_while_others_speak() {
    let script =
        "if test $RANK = 0; then head -c 4000000 /dev/zero | tr '\\0' x; echo; echo > $DIR/go
        else while ! read go < $DIR/go; do :; done & while kill -0 $! ; do echo short; done; fi";
    let script = format!("({script}) 2> /dev/null");
    let options = ["tee=1", "workers=2"];
    let ended = start_after("mkfifo $DIR/go", &options, &script).end();
    let long: Vec<&str> = ended
        .stdout
        .lines()
        .filter(|line| line.contains("xx"))
        .collect();
    assert_eq!(long.len(), 1, "{} pieces", long.len());
    assert_eq!(long[0].len(), "[default0]:".len() + 4_000_000);
    assert!(ended.stdout.lines().any(|line| line == "[default1]:short"));
}

#[test]
fn what_a_killed_worker_wrote_is_there_before_the_outcome() {
    let script = "seq 20000 >&2; printf 'last words' >&2; kill -9 $$";
    let ended = start(&["tee=2"], script).end();
    let lines = ended.all("[default0]:");
    assert_eq!(lines.len(), 20_001);
    assert_eq!(lines[20_000], "last words");
    let position = |beginning: &str| {
        ended
            .said
            .iter()
            .position(|line| line.starts_with(beginning))
            .unwrap()
    };
    assert!(position("[default0]:last words") < position("outcome failed"));
}

#[test]
fn what_a_detached_child_writes_until_it_is_killed_is_there_too() {
    // It survives its worker and ignores the closing signal.
    let child = "trap '' TERM; i=0; echo line 0; echo > $DIR/go; while :; do i=$((i+1)); echo line $i; done";
    let script = "(setsid sh -c \"$CHILD\" &) ; read go < $DIR/go; exit 1";
    let first = format!(
        "mkfifo $DIR/go; export CHILD='{}'",
        child.replace('\'', "'\\''")
    );
    let ended = start_after(&first, &["tee=1", "grace=300"], script).end();
    let logs = files(&ended, "stdout.log");
    let written = fs::read_to_string(&logs[0]).unwrap();
    assert!(written.starts_with("line 0\n"));
    let shown: String = ended
        .stdout
        .lines()
        .map(|line| line.strip_prefix("[default0]:").unwrap().to_owned() + "\n")
        .collect();
    assert_eq!(shown.trim_end(), written.trim_end());
}

#[test]
fn hidden_workers_that_fail_show_their_last_words() {
    let script = "if test $RANK = 1; then seq 100000 >&2; echo 'Error: reason' >&2; exit 3
        else echo fine; sleep 1000; fi";
    let ended = start(&["workers=2", "console=0"], script).end();
    ended.assert_said("[default1]:Error: reason");
    ended.assert_said("log WARN local rank 1 has failed; the end of its stderr");
    let shown = ended.all("[default1]:");
    assert!((5000..12_000).contains(&shown.len()), "{}", shown.len());
    assert!(!ended.stdout.contains("default"));
    let kept = files(&ended, "kept_stderr.log");
    assert_eq!(kept.len(), 1);
    assert!(
        fs::read_to_string(&kept[0])
            .unwrap()
            .ends_with("\nError: reason\n")
    );
}

#[test]
fn hidden_workers_that_succeed_leave_nothing() {
    let ended = start(&["workers=2", "console=0"], "echo $RANK; echo $RANK >&2").end();
    assert_eq!(ended.stdout, "0\n");
    assert!(!ended.said.iter().any(|line| line == "1"));
    assert_eq!(fs::read_dir(ended.directory.path()).unwrap().count(), 0);
}

#[test]
fn equal_lines_of_several_workers_become_one() {
    // The last one to come lets all go on at the same time.
    let script = "exec 3<> $DIR/go; echo >> $DIR/ready
        if test $(wc -l < $DIR/ready) = 8; then printf '\\n\\n\\n\\n\\n\\n\\n\\n' >&3; fi; read go <&3
        printf 'Traceback\\n  File train.py\\n    loss()\\nRuntimeError: rank %s\\n' $RANK >&2";
    let options = ["workers=8", "tee=2", "collapse"];
    let ended = start_after("mkfifo $DIR/go", &options, script).end();
    let shown = ended.all("[default");
    let mut lines = vec![Vec::new(); 8];
    for line in &shown {
        let (ranks, text) = line.split_once("]:").unwrap();
        for range in ranks.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let ranks = first.parse().unwrap()..=last.parse::<usize>().unwrap();
            lines[ranks].iter_mut().for_each(|lines| lines.push(text));
        }
    }
    for (rank, lines) in lines.iter().enumerate() {
        let error = format!("RuntimeError: rank {rank}");
        assert_eq!(
            lines[..],
            ["Traceback", "  File train.py", "    loss()", &error]
        );
    }
    // At best it is 11; a busy machine may keep some of them back for longer than a line waits.
    assert!((11..32).contains(&shown.len()), "{shown:#?}");
}

#[test]
fn collapsing_loses_nothing_of_a_flood_of_distinct_lines() {
    // Each line is written at once: part of one could be shown while its worker rests.
    let script =
        "i=0; while test $i -lt 5000; do i=$((i+1)); echo $RANK $i; done; printf 'no newline'";
    let ended = start(&["workers=3", "tee=1", "collapse"], script).end();
    for rank in 0..3 {
        let prefix = format!("[default{rank}]:{rank} ");
        let numbers: Vec<usize> = ended
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix(prefix.as_str()))
            .map(|number| number.parse().unwrap())
            .collect();
        assert!(numbers.iter().copied().eq(1..=5000), "{}", numbers.len());
    }
    let last = ended
        .stdout
        .lines()
        .filter(|line| line.ends_with("no newline"));
    assert!((1..=3).contains(&last.count()));
}

#[test]
fn a_console_that_nobody_reads_holds_up_no_worker_and_takes_no_memory() {
    let reader = "mkfifo $DIR/console $DIR/read
        (exec 9< $DIR/console; read go < $DIR/read; cat <&9 > /dev/null) & exec > $DIR/console";
    let script = "head -c 1000000 /dev/zero | tr '\\0' '\\n'
        yes \"$(printf '%99s')\" | head -c 10000000; echo $PPID >&2";
    let mut harness = start_after(reader, &["workers=4", "tee=1"], script);
    for _ in 0..4 {
        harness.wait_for("event exited");
    }
    let agent = harness.said.iter().find(|line| line.parse::<u32>().is_ok());
    let status = fs::read_to_string(format!("/proc/{}/status", agent.unwrap())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 30_000, "{kilobytes} kB of 44 MB");
    fs::write(harness.directory.path().join("read"), "go\n").unwrap();
    let ended = harness.end();
    assert_eq!(ended.code(), Some(0), "{:#?}", ended.said);
    assert_eq!(ended.all("event exited").len(), 4);
}

#[test]
fn a_later_attempt_that_gets_no_directory_writes_to_the_console() {
    // The directory of the run gives way to a file.
    let script = "if test $TORCHELASTIC_RESTART_COUNT = 0; then
        mv $DIR/logs/none_* $DIR/away; : > ${TORCHELASTIC_ERROR_FILE%/attempt_0/*}; exit 1; fi
        echo shown; echo \"file <$TORCHELASTIC_ERROR_FILE>\"";
    let ended = start_after(
        "cd $DIR",
        &["logs=logs", "redirect=3", "restarts=1"],
        script,
    )
    .end();
    assert_eq!(ended.code(), Some(0), "{:#?}", ended.said);
    assert_eq!(ended.stdout, "shown\nfile <>\n");
    let warned = ended.all("log WARN make logs/none_");
    assert!(
        warned.len() == 1
            && warned[0]
                .ends_with("Not a directory (os error 20); the workers write to the console"),
        "{:#?}",
        ended.said
    );
}
