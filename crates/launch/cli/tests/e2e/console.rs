//! Tests of several writers to one console: lines stay whole and in order.

use std::fs::{self, File};
use std::io::Write as _;

use crate::harness::{Job, run_shell, run_shell_after, torchrun};

/// Returns two workers; one writes while the other is inside a line.
fn in_pieces(shell: &str) -> Job {
    let script =
        "if test $RANK = 0; then printf 'out '; echo > go; read back < back; printf 'line\\n'
        printf 'err ' >&2; echo > go; read back < back; printf 'line\\n' >&2
        else read go < go; echo other; echo > back; read go < go; echo other >&2; echo > back; fi";
    let job = run_shell_after(shell, "--nproc-per-node 2", script);
    job.own_face().pipe("go").pipe("back")
}

fn assert_whole(text: &str) {
    for (line, times) in [("out line", 1), ("err line", 1), ("other", 2)] {
        let count = text.lines().filter(|shown| *shown == line).count();
        assert_eq!(count, times, "{line}\n{text}");
    }
}

#[test]
fn lines_of_two_workers_are_whole_in_a_pipe_without_a_flag() {
    assert_whole(&in_pieces("exec 2>&1").expect(0).stdout);
}

#[test]
fn lines_of_two_workers_are_whole_in_a_file_without_a_flag() {
    for redirection in ["exec > log 2>&1", "exec >> log 2>> log"] {
        assert_whole(&in_pieces(redirection).expect(0).text("log"));
    }
}

#[test]
fn what_a_worker_writes_through_a_pipe_arrives_byte_by_byte() {
    let bytes = "a\\r\\n\\r10%%\\r20%%\\0\\377\\n\\nno end";
    let job = run_shell_after("exec > log", "", &format!("printf '{bytes}'")).own_face();
    let ended = job.expect(0);
    let written = fs::read(ended.path("log")).unwrap();
    assert_eq!(written, b"a\r\n\r10%\r20%\0\xff\n\nno end");
}

#[test]
fn our_own_line_after_a_line_without_an_end_begins_a_new_one() {
    let ended = run_shell_after("exec 2>&1", "", "printf 'no end'").own_face();
    let text = ended.expect(0).stdout;
    assert!(text.contains("no end\nrdzv: finished in "), "{text}");
}

#[test]
fn a_long_line_without_a_flag_is_not_split_by_another_worker() {
    let script = "if test $RANK = 0; then head -c 4000000 /dev/zero | tr '\\0' x; echo; echo > go
        else while ! read go < go; do :; done & while kill -0 $! ; do echo short; done; fi";
    let script = format!("({script}) 2> /dev/null");
    let job = run_shell("--nproc-per-node 2", &script).own_face();
    let ended = job.pipe("go").expect(0);
    let long: Vec<usize> = ended
        .stdout
        .lines()
        .map(str::len)
        .filter(|length| *length > 5)
        .collect();
    assert_eq!(long, [4_000_000]);
    assert!(ended.stdout.lines().any(|line| line == "short"));
}

#[test]
fn a_prompt_without_a_flag_is_shown_while_the_worker_waits_and_is_repeated_whole() {
    let script = "if test $RANK = 0; then printf 'name? '; read go < go; echo thanks
        else read other < other; echo other; fi";
    let job = run_shell("--nproc-per-node 2", script).own_face();
    let running = job.pipe("go").pipe("other").start();
    running.stdout.await_text("name? ", 1);
    running.write("other", "x\n");
    running.stdout.await_text("name? \nother\n", 1);
    running.write("go", "x\n");
    let text = running.wait().expect(0).stdout;
    assert_eq!(text, "name? \nother\nname? thanks\n");
}

#[test]
fn a_redrawn_line_is_shown_once_for_each_state() {
    let script = "if test $RANK = 0; then printf '\\r10%%'; read go < go; printf '\\r20%%'; read again < again; echo
        else read other < other; echo other; fi";
    let job = run_shell("--nproc-per-node 2", script).own_face();
    let running = job.pipe("go").pipe("again").pipe("other").start();
    running.stdout.await_text("\r10%", 1);
    running.write("other", "x\n");
    running.stdout.await_text("other\n", 1);
    running.write("go", "x\n");
    running.stdout.await_text("\r20%", 1);
    running.write("again", "x\n");
    assert_eq!(running.wait().expect(0).stdout, "\r10%\nother\n\r20%\n");
}

#[test]
fn workers_of_the_link_inherit_stdout_and_those_of_rdzv_run_do_not() {
    let script = "readlink /proc/$PPID/fd/1 /proc/$$$$/fd/1 | uniq | wc -l";
    let line = ["--no-python", "sh", "-c", script];
    assert_eq!(torchrun(line).expect(0).stdout.trim(), "1");
    let own = run_shell("", script).own_face();
    assert_eq!(own.expect(0).stdout.trim(), "2");
}

#[test]
fn a_worker_whose_reader_has_gone_gets_sigpipe_without_a_flag() {
    let reader = "exec 3>&1; (head -n 1 < console >&3) & exec > console";
    let job = run_shell_after(reader, "", "while :; do echo line; done").own_face();
    let ended = job.pipe("console").expect(1);
    assert_eq!(ended.stdout, "line\n");
    ended.assert_stderr("SIGPIPE");
}

#[test]
fn a_line_without_an_end_is_shown_while_the_worker_waits() {
    let script = "if test $RANK = 0; then printf 'name? ' >&2; read go < go; echo thanks >&2
        else read other < other; echo other >&2; fi";
    let running = run_shell("--nproc-per-node 2 -t 2", script)
        .pipe("go")
        .pipe("other")
        .start();
    running.stderr.await_text("[default0]:name? ", 1);
    // The other worker writes after the open question. The two texts must stay on separate lines.
    running.write("other", "x\n");
    running
        .stderr
        .await_text("[default0]:name? \n[default1]:other\n", 1);
    running.write("go", "x\n");
    // The question appears again, because another line interrupted it.
    let ended = running.wait().expect(0);
    assert!(
        ended.stderr.ends_with("[default0]:name? thanks\n"),
        "{}",
        ended.stderr
    );
}

#[test]
fn streams_and_our_lines_share_a_pipe_and_no_line_is_torn() {
    let script = "yes \"out $RANK abcdefghijklmnopqrstuvwxyz\" | head -n 50000 &
        yes \"err $RANK abcdefghijklmnopqrstuvwxyz\" | head -n 50000 >&2; wait
        if test $RANK = 1; then read go < go; exit 1; fi; echo > go";
    let flags = "--nproc-per-node 2 -t 3 --max-restarts 3";
    let ended = run_shell_after("exec 2>&1", flags, script)
        .pipe("go")
        .expect(1);
    const WHOLE: [&str; 4] = [
        "[default0]:out 0 abcdefghijklmnopqrstuvwxyz",
        "[default0]:err 0 abcdefghijklmnopqrstuvwxyz",
        "[default1]:out 1 abcdefghijklmnopqrstuvwxyz",
        "[default1]:err 1 abcdefghijklmnopqrstuvwxyz",
    ];
    let (mut counts, mut ours) = ([0; 4], 0);
    for line in ended.stdout.lines() {
        if let Some(which) = WHOLE.iter().position(|whole| *whole == line) {
            counts[which] += 1;
        } else if !WHOLE.iter().any(|whole| whole.starts_with(line)) {
            // Otherwise, it is the beginning of a slow line, which appears again as a whole.
            assert!(!line.contains("]:out") && !line.contains("]:err"), "{line}");
            ours += 1;
        }
    }
    assert_eq!(counts, [200_000; 4]);
    assert!(ours > 20, "{ours}");
}

#[test]
fn a_long_line_stays_whole_while_others_speak() {
    let script = "if test $RANK = 0; then head -c 4000000 /dev/zero | tr '\\0' x; echo; echo > go
        else while ! read go < go; do :; done & while kill -0 $! ; do echo short; done; fi";
    let script = format!("({script}) 2> /dev/null");
    let flags = "--nproc-per-node 2 -t 1";
    let ended = run_shell(flags, &script).pipe("go").expect(0);
    let long = ended.stdout.lines().filter(|line| line.contains("xx"));
    let long: Vec<&str> = long.collect();
    assert_eq!(long.len(), 1, "{} pieces", long.len());
    assert_eq!(long[0].len(), "[default0]:".len() + 4_000_000);
    assert!(ended.stdout.lines().any(|line| line == "[default1]:short"));
}

#[test]
fn what_a_killed_worker_wrote_is_there_before_the_outcome() {
    let script = "seq 20000 >&2; printf 'last words' >&2; kill -9 $$$$";
    let ended = run_shell("-t 2", script).expect(1);
    let (said, outcome) = ended.stderr.split_once("[default0]:last words\n").unwrap();
    let lines = said.lines().filter(|line| line.starts_with("[default0]:"));
    assert_eq!(lines.count(), 20_000);
    assert!(outcome.contains("ChildFailedError"), "{outcome}");
}

#[test]
fn what_a_detached_child_writes_before_it_is_killed_is_there_too() {
    // The child survives its worker and ignores the closing signal.
    let child =
        "trap '' TERM; i=0; echo line 0; echo > go; while :; do i=$((i+1)); echo line $i; done";
    let script = "(setsid sh -c \"$CHILD\" &) ; read go < go; exit 1";
    let flags = "-t 1 --log-dir logs --shutdown-timeout 1";
    let ended = run_shell(flags, script)
        .env("CHILD", child)
        .pipe("go")
        .expect(1);
    let written = ended.content("logs", "stdout.log");
    assert!(written.starts_with("line 0\n"));
    assert_eq!(
        ended.stdout.replace("[default0]:", "").trim_end(),
        written.trim_end()
    );
}

#[test]
fn collapsing_loses_nothing_of_a_flood_of_distinct_lines() {
    // Each line is one write. Otherwise, a part could be shown while its worker pauses.
    let script =
        "i=0; while test $i -lt 5000; do i=$((i+1)); echo $RANK $i; done; printf 'no newline'";
    let flags = "--nproc-per-node 3 -t 1 --collapse";
    let ended = run_shell(flags, script).expect(0);
    for rank in 0..3 {
        let prefix = format!("[default{rank}]:{rank} ");
        let lines = ended.stdout.lines();
        let numbers = lines.filter_map(|line| line.strip_prefix(prefix.as_str()));
        let numbers = numbers.map(|number| number.parse::<u32>().unwrap());
        assert!(numbers.eq(1..=5000));
    }
    let lines = ended.stdout.lines();
    let last = lines.filter(|line| line.ends_with("no newline"));
    assert!((1..=3).contains(&last.count()));
}

#[test]
fn a_console_that_nobody_reads_holds_up_no_worker_and_takes_no_memory() {
    let reader =
        "(exec 9< console; read go < go; exec env -i cat <&9 > /dev/null) & exec > console";
    let script = "head -c 1000000 /dev/zero | tr '\\0' '\\n'
        yes \"$(printf '%99s')\" | head -c 10000000; echo \"agent $PPID\" >&2; read end < end";
    let running = run_shell_after(reader, "--nproc-per-node 4 -t 1", script)
        .pipe("console")
        .pipe("go")
        .pipe("end")
        .start();
    let agents = [(); 4].map(|()| running.stderr.await_line("agent "));
    let status = fs::read_to_string(format!("/proc/{}/status", agents[0])).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes: u64 = peak
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    assert!(kilobytes < 40_000, "{kilobytes} kB of 44 MB");
    running.write("go", "go\n");
    // There is a line for each worker, even for one that opens the pipe late.
    let mut end = File::create(running.path("end")).unwrap();
    end.write_all(b"1\n2\n3\n4\n").unwrap();
    running.wait().expect(0);
}

#[test]
fn a_later_attempt_that_gets_no_directory_writes_to_the_console() {
    // A file replaces the directory of the run.
    let script = "if test $TORCHELASTIC_RESTART_COUNT = 0; then
        mv logs/job_* away; : > ${TORCHELASTIC_ERROR_FILE%/attempt_0/*}; exit 1; fi
        echo shown; echo \"file <$TORCHELASTIC_ERROR_FILE>\"";
    let flags = "--rdzv-id job --log-dir logs -r 3 --max-restarts 1";
    let ended = run_shell(flags, script).expect(0);
    assert_eq!(ended.stdout, "shown\nfile <>\n");
    let warning = "Not a directory (os error 20); the workers write to the console\n";
    assert_eq!(ended.stderr.matches(warning).count(), 1, "{}", ended.stderr);
}

#[test]
fn a_reader_that_goes_away_stops_nobody() {
    let reader = "exec 3>&1; (head -n 1 < console >&3) & exec > console";
    let job = run_shell_after(reader, "-t 1", "seq 100000; echo done > done");
    let ended = job.pipe("console").expect(0);
    assert_eq!(ended.stdout, "[default0]:1\n");
    assert_eq!(ended.text("done"), "done\n");
}
