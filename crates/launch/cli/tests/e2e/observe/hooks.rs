//! Tests of the commands that get the report.

use rustix::process::Signal;

use crate::harness::run_shell;

#[test]
fn commands_get_the_report_of_a_restart_and_of_a_failure() {
    let flags = [
        "--max-restarts=1",
        "--on-restart=cat > restart.json; echo noticed",
        "--on-failure=cat > failure.json; echo lost >&2; exit 4",
    ];
    let ended = run_shell(&flags[..], "exit 3").expect(1);
    ended.assert_stderr("rdzv: --on-restart: noticed\n");
    ended.assert_stderr("rdzv: --on-failure: lost\n");
    ended.assert_stderr("rdzv: --on-failure: the command failed: exit status: 4\n");
    let restart = ended.json("restart.json");
    assert_eq!(restart["outcome"], "restarting");
    assert_eq!(restart["restart_count"], 1);
    assert_eq!(restart["first_failure"]["exit_code"], 3);
    let failure = ended.json("failure.json");
    assert_eq!(
        (&failure["outcome"], &failure["exit_code"]),
        (&"failed".into(), &1.into())
    );
    assert_eq!(failure["restarts"].as_array().unwrap().len(), 1);
}

#[test]
fn a_command_at_a_restart_does_not_delay_it() {
    let flags = [
        "--max-restarts=1",
        "--on-restart=cat pipe; cat > restart.json",
    ];
    let worker = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 3; echo released > pipe";
    // The command waits for the second attempt.
    let ended = run_shell(&flags[..], worker).pipe("pipe").expect(0);
    ended.assert_stderr("rdzv: --on-restart: released\n");
    assert_eq!(ended.json("restart.json")["outcome"], "restarting");
}

#[test]
fn a_command_that_does_not_end_is_killed_with_its_processes() {
    let flags = [
        "--hook-timeout=0.5",
        "--on-failure=echo begun; sleep 1000 & sleep 1000",
    ];
    let ended = run_shell(&flags[..], "exit 3").expect(1);
    ended.assert_stderr("rdzv: --on-failure: begun\n");
    let text =
        "--on-failure: the command did not exit within 0.5 s and was killed (--hook-timeout)";
    ended.assert_stderr(text);
}

#[test]
fn a_last_line_without_line_feed_is_printed() {
    let flags = ["--on-failure=head -c 5000 /dev/zero; echo; printf 'the last'"];
    let ended = run_shell(&flags[..], "exit 3").expect(1);
    ended.assert_stderr("rdzv: --on-failure: (omitted: a line of more than 4096 bytes)\n");
    ended.assert_stderr("rdzv: --on-failure: the last\n");
}

#[test]
fn a_command_that_closes_its_output_or_never_stops_printing_is_killed() {
    for command in ["exec >&- 2>&-; sleep 1000", "exec yes ''"] {
        let hook = format!("--on-failure={command}");
        let flags = ["--hook-timeout=0.5", &hook];
        let ended = run_shell(&flags[..], "exit 3").expect(1);
        ended.assert_stderr("did not exit within 0.5 s and was killed (--hook-timeout)");
    }
}

#[test]
fn a_command_that_exits_beside_a_process_that_never_stops_printing_has_succeeded() {
    let flags = ["--on-failure=yes '' & exit 0"];
    let ended = run_shell(&flags[..], "exit 3").expect(1);
    assert!(!ended.stderr.contains("--on-failure"), "{}", ended.stderr);
}

#[test]
fn a_success_and_a_signal_run_no_command() {
    let flags = [
        "--on-failure=echo > failed",
        "--on-restart=echo > restarted",
    ];
    let ended = run_shell(&flags[..], "true").expect(0);
    assert!(!ended.path("failed").exists() && !ended.path("restarted").exists());
    let running = run_shell(&flags[..], "echo started; sleep 1000").start();
    running.stdout.await_text("started\n", 1);
    running.signal(Signal::TERM);
    let ended = running.wait().expect(1);
    assert!(!ended.path("failed").exists());
}

#[test]
fn a_limit_that_is_none_is_refused() {
    let ended = run_shell("--hook-timeout=0", "true").expect(2);
    ended.assert_stderr("argument --hook-timeout: 0 is not a positive number of seconds");
}
