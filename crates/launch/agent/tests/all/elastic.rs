//! An agent whose rendezvous says what a test wants: what it makes of nodes that come, go and fail.
#![allow(clippy::unwrap_used, reason = "this is all test code")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use crate::harness::{Harness, start_after};
use rdzv_agent_proto::group::{Exit, Failure};
use rdzv_core::rank::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use tempfile::TempDir;

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The other end of the scripted rendezvous.
struct Script {
    lines: Lines<BufReader<UnixStream>>,
    stream: UnixStream,
    _directory: TempDir,
}

impl Script {
    /// What the agent asked of the rendezvous next.
    #[track_caller]
    fn expect(&mut self, line: &str) {
        let said = self.lines.next().map(Result::unwrap);
        assert_eq!(said.as_deref(), Some(line));
    }

    fn say(&mut self, line: &str) {
        writeln!(self.stream, "{line}").unwrap();
    }

    fn answer_join(&mut self, line: &str) {
        self.expect("join");
        self.say(line);
    }
}

/// An agent that has asked to join.
fn agent(options: &[&str], script: &str) -> (Harness, Script) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let socket = format!("scripted={}", path.display());
    let options = [&[&*socket, "nodes=2"], options].concat();
    let harness = start_after("mkfifo $DIR/told", &options, script);
    let patience = Timespec::try_from(TIMEOUT).unwrap();
    let mut watched = [PollFd::new(&listener, PollFlags::IN)];
    let came = poll(&mut watched, Some(&patience)).unwrap();
    assert_eq!(came, 1, "the agent does not ask to join");
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let script = Script {
        lines: BufReader::new(stream.try_clone().unwrap()).lines(),
        stream,
        _directory: directory,
    };
    (harness, script)
}

/// Tells its rank and round, and ends well in a round with the number 1.
const WORKER: &str = "echo $RANK/$WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE \
    $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_RESTART_COUNT $RDZV_ROUND; \
    test $RDZV_ROUND = 1 || { echo > $DIR/told; sleep 1000; }";

#[test]
fn a_newcomer_leads_to_a_new_round_that_costs_no_restart() {
    let (mut harness, mut script) = agent(&["redirect=1"], WORKER);
    script.answer_join("round 0 0 of 1 base 0 of 1");
    harness.wait_for("event started");
    // Ends when the worker has told.
    std::fs::read(harness.directory.path().join("told")).unwrap();
    script.say("changed 0");
    harness.wait_for("event regrouping node b came");
    script.answer_join("round 1 1 of 2 base 1 of 2");
    harness.wait_for("event started");
    harness.wait_for("event exited");
    // Its barrier is passed by nobody, so the peer's failure ends it.
    script.say("peer-failed b code 7");
    script.expect("shutdown");
    let ended = harness.end();
    assert_eq!(ended.code(), Some(1));
    ended.assert_said("outcome error node b has failed for good");
    // The first round's output is kept.
    let logs = find_logs(ended.directory.path());
    assert_eq!(
        logs,
        [
            ("attempt_0".into(), "0/1 0/1 10.0.0.9:4000 0 0\n".into()),
            ("attempt_0.r1".into(), "1/2 1/2 10.0.0.9:4000 0 1\n".into()),
        ]
    );
}

/// Name of each attempt's directory, and what its worker wrote.
fn find_logs(directory: &std::path::Path) -> Vec<(String, String)> {
    let inside = |path: &std::path::Path| {
        let mut paths: Vec<_> = std::fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect();
        paths.sort();
        paths
    };
    let run = inside(&inside(directory)[0]).remove(0);
    inside(&run)
        .into_iter()
        .map(|attempt| {
            let name = attempt.file_name().unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(attempt.join("0/stdout.log")).unwrap();
            (name, text)
        })
        .collect()
}

#[test]
fn ranks_that_the_rendezvous_does_not_know_are_exchanged_through_the_store() {
    let (harness, mut script) = agent(&[], "echo $RANK/$WORLD_SIZE");
    script.answer_join("round 0 0 of 1");
    script.expect("shutdown");
    assert_eq!(harness.end().stdout, "0/1\n");
}

#[test]
fn a_node_takes_part_in_a_round_whose_store_is_gone_again() {
    let (harness, mut script) = agent(&[], "echo $RANK/$WORLD_SIZE");
    script.answer_join("gone round 0 0 of 1 base 0 of 1");
    // Its barrier needs the store.
    script.expect("shutdown");
    assert_eq!(harness.end().stdout, "0/1\n");
}

#[test]
fn a_change_during_the_exchange_of_ranks_leads_to_another_round() {
    let (mut harness, mut script) = agent(&[], "exit 0");
    script.answer_join("round 0 0 of 2");
    harness.wait_for("event rendezvous");
    script.say("changed 0");
    script.answer_join("round 1 0 of 1 base 0 of 1");
    script.expect("shutdown");
    assert_eq!(harness.end().code(), Some(0));
}

#[test]
fn a_surplus_node_ends_well_and_says_so() {
    let (harness, mut script) = agent(&[], "exit 9");
    script.answer_join("not-needed");
    script.expect("leave");
    let ended = harness.end();
    assert_eq!(ended.code(), Some(0));
    ended.assert_said("log WARN");
}

#[test]
fn a_signal_while_waiting_for_peers_leaves_in_order() {
    let (harness, mut script) = agent(&[], "exit 0");
    script.expect("join");
    harness.signal(harness.keeper(), Signal::TERM);
    script.expect("leave");
    harness
        .end()
        .assert_said("outcome signalled signal=15 workers_started=false");
}

#[test]
fn a_signal_while_workers_run_leaves_the_job_to_the_others() {
    let (mut harness, mut script) = agent(&[], "sleep 1000");
    script.answer_join("round 0 0 of 2 base 0 of 2");
    harness.wait_for("event started");
    harness.signal(harness.keeper(), Signal::TERM);
    script.expect("leave");
    harness
        .end()
        .assert_said("outcome signalled signal=15 workers_started=true");
}

#[test]
fn the_others_hear_of_a_last_failure_before_stubborn_siblings_have_ended() {
    let script_of_worker = "trap '' TERM; test $LOCAL_RANK = 0 && exit 7; sleep 1000 & wait; wait";
    let (harness, mut script) = agent(&["workers=2", "grace=60000"], script_of_worker);
    script.answer_join("round 0 0 of 2 base 0 of 4");
    let said = script.lines.next().unwrap().unwrap();
    let (sentence, failure) = Failure::decode(&said);
    assert!(
        sentence.starts_with("report worker (rank 0, local rank 0, pid ")
            && sentence.ends_with(") exited with code 7"),
        "{said}"
    );
    let (failure, _) = failure.unwrap();
    let evidence = failure.evidence;
    assert_eq!(
        (evidence.rank, evidence.exit),
        (Some(Rank(0)), Some(Exit::Code(7)))
    );
    harness.signal(harness.keeper(), Signal::KILL);
    harness.end();
}

#[test]
fn the_loss_of_a_node_explains_a_last_failure() {
    let worker = "test $RDZV_ROUND = 1";
    let (mut harness, mut script) = agent(&[], worker);
    script.answer_join("round 0 0 of 2 base 0 of 2");
    harness.wait_for("event exited");
    script.say("changed 0");
    script.answer_join("round 1 0 of 1 base 0 of 1");
    script.expect("shutdown");
    assert_eq!(harness.end().code(), Some(0));
}

#[test]
fn without_its_rendezvous_an_agent_stops_its_workers() {
    let (mut harness, mut script) = agent(&["restarts=3"], "sleep 1000");
    script.answer_join("round 0 0 of 1 base 0 of 1");
    harness.wait_for("event started");
    script.say("lost the host of the store has gone");
    script.expect("leave");
    let ended = harness.end();
    assert_eq!(ended.code(), Some(1));
    ended.assert_said("outcome error the host of the store has gone");
}

#[test]
fn a_backend_that_panics_ends_the_run_with_its_name() {
    let (harness, mut script) = agent(&["restarts=3"], "exit 0");
    script.answer_join("panic");
    let ended = harness.end();
    assert_eq!(ended.code(), Some(1));
    ended.assert_said(
        "outcome error the thread of the rendezvous has panicked at the rendezvous backend: this is a \
         defect of the backend; the message of the panic is on stderr",
    );
}

#[test]
fn a_rendezvous_that_fails_is_the_error_of_the_run() {
    let (harness, mut script) = agent(&["restarts=3"], "exit 0");
    script.answer_join("fail nobody came");
    script.expect("leave");
    let ended = harness.end();
    assert_eq!(ended.code(), Some(1));
    ended.assert_said("outcome error fail nobody came");
}
