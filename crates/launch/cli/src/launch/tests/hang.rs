//! Tests of flags for workers that hang.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use rdzv_agent::config::{HangAction, HangPlan};

use super::case;

const TIMER_FILE: &str = "TORCHELASTIC_TIMER_FILE";

#[test]
fn nothing_is_watched_unless_somebody_asks_for_it() {
    let plan = case(&["s.py"]).files(&["/usr/bin/py-spy"]).launch().plan;
    // Viewers can request stacks in any run.
    let tool = Some("/usr/bin/py-spy".into());
    assert_eq!(plan.hang.stack_tool, tool);
    let stack_tool = None;
    assert_eq!(
        HangPlan {
            stack_tool,
            ..plan.hang
        },
        HangPlan::default()
    );
    assert!(!plan.environment.contains_key(OsStr::new(TIMER_FILE)));
}

#[test]
fn the_watchdog_is_on_for_exactly_one() {
    let watchdog = |value, path: &str| {
        let case = case(&["s.py"]).with("TORCHELASTIC_ENABLE_FILE_TIMER", value);
        let plan = case
            .with(TIMER_FILE, path)
            .with("TMPDIR", "/t")
            .launch()
            .plan;
        let variable = plan.environment.get(OsStr::new(TIMER_FILE)).cloned();
        let pipe = plan.hang.watchdog;
        if let Some(pipe) = &pipe {
            assert_eq!(variable.as_deref(), Some(pipe.as_os_str()));
        }
        pipe
    };
    assert_eq!(watchdog("0", ""), None);
    assert_eq!(watchdog("true", "/x"), None);
    assert_eq!(watchdog("1", "/x").as_deref(), Some(Path::new("/x")));
    let made = watchdog("1", "").unwrap();
    assert_eq!(made, Path::new("/t/watchdog_timer_a-random-id"));
}

#[test]
fn a_pipe_without_the_switch_is_passed_on_but_not_listened_to() {
    let plan = case(&["s.py"]).with(TIMER_FILE, "/x").launch().plan;
    assert_eq!(plan.hang.watchdog, None);
    let variable = plan.environment.get(OsStr::new(TIMER_FILE)).unwrap();
    assert_eq!(variable, "/x");
}

#[test]
fn limits_and_action_are_what_was_typed() {
    let line = [
        "--hang-timeout",
        "1.5",
        "--heartbeat-timeout=init=600,30",
        "--hang-action=restart",
        "s.py",
    ];
    let hang = case(&line).launch().plan.hang;
    assert_eq!(hang.progress, Some(Duration::from_millis(1500)));
    assert_eq!(hang.action, HangAction::Restart);
    let limits = hang.heartbeat.unwrap().limits;
    assert_eq!(limits.of("init"), Some(Duration::from_secs(600)));
    assert_eq!(limits.of("step"), Some(Duration::from_secs(30)));
    let from_environment = case(&["s.py"])
        .with("PET_HANG_TIMEOUT", "7")
        .with("PET_HANG_ACTION", "fail");
    let hang = from_environment.launch().plan.hang;
    assert_eq!(hang.progress, Some(Duration::from_secs(7)));
    assert_eq!(hang.action, HangAction::Fail);
}

#[test]
fn slow_ranks_need_pipes_but_no_limits() {
    let hang = case(&["--stragglers=30", "s.py"]).launch().plan.hang;
    assert_eq!(hang.stragglers, Some(Duration::from_secs(30)));
    assert_eq!(hang.heartbeat.unwrap().limits.of("step"), None);
    let hang = case(&["--stragglers=0", "s.py"]).launch().plan.hang;
    assert_eq!((hang.stragglers, hang.heartbeat), (None, None));
}

#[test]
fn bad_limits_are_refused_in_one_sentence() {
    for line in [
        ["--hang-timeout=-1", "s.py"],
        ["--hang-timeout=nan", "s.py"],
        ["--heartbeat-timeout=soon", "s.py"],
        ["--stragglers=-5", "s.py"],
        ["--hang-action=panic", "s.py"],
    ] {
        let text = case(&line).refusal().to_string();
        let flag = line[0].split('=').next().unwrap();
        assert!(text.starts_with(&format!("argument {flag}")), "{text}");
    }
}

#[test]
fn stacks_are_read_with_what_is_in_path_or_beside_the_interpreter() {
    let tool = |files: &[&'static str]| {
        let case = case(&["--hang-timeout=5", "s.py"])
            .with("PYTHON_EXEC", "/venv/bin/python")
            .files(files);
        case.launch().plan.hang.stack_tool
    };
    assert_eq!(tool(&[]), None);
    let beside = "/venv/bin/py-spy";
    assert_eq!(tool(&[beside]).as_deref(), Some(Path::new(beside)));
    let in_path = "/usr/local/bin/py-spy";
    assert_eq!(
        tool(&[beside, in_path]).as_deref(),
        Some(Path::new(in_path))
    );
}
