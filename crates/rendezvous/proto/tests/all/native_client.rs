//! The agent's side of native rendezvous.

use std::time::Duration;

use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now};
use rdzv_rendezvous_proto::coordinator::wire::{
    AgentRefusal, Authority, Event, HeldRound, Operation, Program, Reattach, Report, Standing,
};
use rdzv_rendezvous_proto::native_client::{
    Input, NativeClient, NativeFailure, Output, RoundChange,
};
use rdzv_rendezvous_proto::waiting::Arrived;
use rdzv_rendezvous_proto::{FencePolicy, NodeDesc, Settings};

fn tell(client: &mut NativeClient, input: Input<'_>) -> Vec<Output> {
    client.handle(Now::default(), input);
    std::iter::from_fn(|| client.poll_output()).collect()
}

fn hear(client: &mut NativeClient, event: &Event) -> Vec<Output> {
    let mut bytes = Vec::new();
    event.write(&mut bytes);
    tell(client, Input::Bytes(&bytes))
}

/// Creates a client that has not joined yet.
fn new_client(settings: Settings) -> NativeClient {
    let me = NodeDesc::new("b", 1);
    NativeClient::new(Now::default(), 1, "run", me, settings)
}

/// Returns the event that a round of two is complete.
fn formed(round: u64, rank: u32) -> Event {
    Event::Formed {
        round,
        rank,
        world_size: 2,
        assignment: None,
        replaced: Vec::new(),
    }
}

/// Returns the event that the workers of a round meet at `a:4000`.
fn master(round: u64) -> Event {
    let (addr, port) = ("a".to_owned(), 4000);
    Event::Master { round, addr, port }
}

#[test]
fn a_run_that_ends_before_the_workers_could_meet_ends_the_join() {
    let mut client = new_client(Settings::new(2, 2));
    assert!(matches!(tell(&mut client, JOIN)[..], [Output::Send(_)]));
    assert_eq!(hear(&mut client, &formed(0, 1)), []);
    assert_eq!(
        hear(&mut client, &Event::Closed),
        [Output::NotJoined(NativeFailure::Refused(
            AgentRefusal::Closed
        ))]
    );
}

fn at(client: &mut NativeClient, seconds: f64, input: Input<'_>) -> Vec<Output> {
    let now = Now::at(Mono::from_origin(Duration::from_secs_f64(seconds)));
    client.handle(now, input);
    std::iter::from_fn(|| client.poll_output()).collect()
}

const JOIN: Input<'_> = Input::Join {
    role: "default",
    local_world_size: 1,
    lost: &[],
};

/// Creates a client in round 0 that has hung up on a silent coordinator.
///
/// The close was at 15 s.
fn deaf() -> NativeClient {
    let mut client = new_client(Settings::new(1, 2));
    tell(&mut client, JOIN);
    hear(&mut client, &formed(0, 1));
    let joined = hear(&mut client, &master(0));
    assert!(matches!(joined[..], [Output::Joined(_)]), "{joined:?}");
    for seconds in [5.0, 10.0] {
        let beat = at(&mut client, seconds, Input::Tick);
        assert!(matches!(beat[..], [Output::Send(_)]), "{beat:?}");
    }
    assert_eq!(at(&mut client, 15.0, Input::Tick), [Output::HangUp]);
    client
}

/// Tries to connect without success from 15 s on, until there is an output.
///
/// Returns without outputs at the time `deadline`.
fn dial_in_vain(client: &mut NativeClient, deadline: f64) -> (f64, Vec<Output>) {
    let mut seconds = 15.0;
    while seconds < deadline {
        if at(client, seconds, Input::Tick) == [Output::Dial] {
            let failed = Input::Disconnected("timed out".to_owned());
            let outputs = at(client, seconds, failed);
            if !outputs.is_empty() {
                return (seconds, outputs);
            }
        }
        seconds += 0.25;
    }
    (deadline, Vec::new())
}

#[test]
fn a_node_that_cannot_hear_its_coordinator_joins_again_when_it_can() {
    let mut client = deaf();
    let (seconds, outputs) = dial_in_vain(&mut client, 75.0);
    assert!((20.0..21.0).contains(&seconds), "{seconds}");
    assert!(
        matches!(
            &outputs[..],
            [Output::Changed(RoundChange::Membership { round: 0, .. })]
        ),
        "{outputs:?}"
    );
    assert_eq!(at(&mut client, 21.0, JOIN), []);
    assert_eq!(at(&mut client, 21.0, Input::Tick), [Output::Dial]);
    let joined = at(&mut client, 22.0, Input::Connected(None));
    assert!(matches!(joined[..], [Output::Send(_)]), "{joined:?}");
}

#[test]
fn a_coordinator_that_stays_silent_is_given_up() {
    let mut client = deaf();
    dial_in_vain(&mut client, 75.0);
    assert_eq!(at(&mut client, 21.0, JOIN), []);
    let (seconds, outputs) = dial_in_vain(&mut client, 100.0);
    assert!((75.0..77.0).contains(&seconds), "{seconds}");
    assert!(
        matches!(
            &outputs[..],
            [Output::NotJoined(NativeFailure::Unreachable { .. })]
        ),
        "{outputs:?}"
    );
}

#[test]
fn a_coordinator_that_closed_the_connection_is_gone_soon() {
    let mut client = deaf();
    // The network works again, but the process is lost.
    at(&mut client, 16.0, Input::Tick);
    at(&mut client, 16.0, Input::Connected(None));
    at(&mut client, 17.0, JOIN);
    at(&mut client, 17.0, Input::Disconnected("closed".to_owned()));
    let (seconds, outputs) = dial_in_vain(&mut client, 60.0);
    assert!((22.0..23.0).contains(&seconds), "{seconds}");
    assert!(
        matches!(&outputs[..], [Output::NotJoined(_)]),
        "{outputs:?}"
    );
}

#[test]
fn a_long_join_asks_who_has_come_and_says_so_after_2_5_and_30_s() {
    let mut settings = Settings::new(2, 2);
    settings.keep_alive_interval = Duration::from_secs(1000);
    let program = Some(Program::new("train.py", b"print()", true));
    let mut client = new_client(settings).running(program);
    at(&mut client, 10.0, JOIN);
    let mut alive = Vec::new();
    Event::Alive(Some(Arrived {
        nodes: 1,
        named: vec!["b".to_owned()],
        is_spare: false,
    }))
    .write(&mut alive);
    let mut heartbeat = Vec::new();
    Operation::Heartbeat.write(&mut heartbeat);
    for seconds in [12.5, 40.0] {
        let deadline = Mono::from_origin(Duration::from_secs_f64(seconds));
        assert_eq!(client.deadline(), Some(deadline));
        let asked = at(&mut client, seconds, Input::Tick);
        assert_eq!(asked, [Output::Send(heartbeat.clone())]);
        let said = at(&mut client, seconds, Input::Bytes(&alive));
        let [
            Output::Waiting {
                waiting,
                is_reminder: true,
            },
        ] = &said[..]
        else {
            panic!("{said:?}");
        };
        let left = settings.join_timeout - Duration::from_secs_f64(seconds - 10.0);
        assert_eq!(waiting.left, left);
        assert!(waiting.to_string().contains("1 of 2 (b)"), "{waiting}");
        // An event without a question only updates a display, and is not logged.
        let said = at(&mut client, seconds, Input::Bytes(&alive));
        assert!(
            matches!(
                said[..],
                [Output::Waiting {
                    is_reminder: false,
                    ..
                }]
            ),
            "{said:?}"
        );
    }
}

#[test]
fn a_complete_round_without_a_word_of_rank_0_is_spoken_of_after_2_5_and_30_s() {
    let mut settings = Settings::new(2, 2);
    settings.keep_alive_interval = Duration::from_secs(1000);
    let mut client = new_client(settings);
    at(&mut client, 10.0, JOIN);
    let mut bytes = Vec::new();
    formed(4, 1).write(&mut bytes);
    at(&mut client, 20.0, Input::Bytes(&bytes));
    for (seconds, left) in [(22.5, 57.5), (50.0, 30.0)] {
        let deadline = Mono::from_origin(Duration::from_secs_f64(seconds));
        assert_eq!(client.deadline(), Some(deadline));
        let left = Duration::from_secs_f64(left);
        let awaiting = Output::AwaitingMaster { round: 4, left };
        assert_eq!(at(&mut client, seconds, Input::Tick), [awaiting]);
    }
}

#[test]
fn the_wait_for_rank_0_ends_after_the_master_timeout() {
    let mut settings = Settings::new(2, 2);
    settings.keep_alive_interval = Duration::from_secs(1000);
    settings.master_timeout = Duration::from_secs(2);
    let mut client = new_client(settings);
    at(&mut client, 10.0, JOIN);
    let mut bytes = Vec::new();
    formed(4, 1).write(&mut bytes);
    at(&mut client, 20.0, Input::Bytes(&bytes));
    let deadline = Mono::from_origin(Duration::from_secs(22));
    assert_eq!(client.deadline(), Some(deadline));
    let ended = at(&mut client, 22.0, Input::Tick);
    let failure = NativeFailure::SilentLeader {
        round: 4,
        elapsed: Duration::from_secs(2),
    };
    assert!(ended.contains(&Output::NotJoined(failure)), "{ended:?}");
}

const TIMEOUT: Duration = Duration::from_secs(60);

fn authority(epoch: u32) -> Authority {
    Authority {
        cluster: 7,
        epoch,
        timeout: TIMEOUT,
        ..Authority::default()
    }
}

fn attached(epoch: u32) -> Event {
    Event::Attached(authority(epoch))
}

/// Creates a client that joins at a restartable coordinator.
fn joining_client(settings: Settings) -> NativeClient {
    let client = new_client(settings);
    let mut client = client.running(Some(Program::new("train.py", b"", true)));
    tell(&mut client, JOIN);
    client
}

/// Completes round 5, with this client as rank 0.
fn form(client: &mut NativeClient) -> Vec<Output> {
    let recoverable = Event::Recoverable {
        round: 5,
        host: None,
    };
    hear(client, &recoverable);
    hear(client, &formed(5, 0))
}

/// Creates a client that waits for a round at a restartable coordinator.
fn attached_client() -> NativeClient {
    let mut client = joining_client(Settings::new(1, 2));
    let watch = Output::Watch(Duration::from_millis(1500));
    assert_eq!(hear(&mut client, &attached(3)), [watch]);
    client
}

/// Creates such a client with rank 0 in round 5.
///
/// It has no endpoint of the workers' store yet.
fn formed_client() -> NativeClient {
    let mut client = attached_client();
    assert_eq!(form(&mut client), [Output::Lead { round: 5 }]);
    client
}

/// Creates such a client as a member of the round.
fn member() -> NativeClient {
    let mut client = formed_client();
    let joined = hear(&mut client, &master(5));
    assert!(
        matches!(&joined[..], [Output::Joined(joined)] if joined.is_recoverable),
        "{joined:?}"
    );
    client
}

/// Returns the operations over a new connection after the old one has broken.
fn said_after_outage(client: &mut NativeClient) -> Vec<Operation> {
    let broken = tell(client, Input::Disconnected("reset".to_owned()));
    assert!(
        matches!(broken[..], [] | [Output::LossesKnownWithin(TIMEOUT)]),
        "{broken:?}"
    );
    assert_eq!(tell(client, Input::Tick), [Output::Dial]);
    tell(client, Input::Connected(None))
        .iter()
        .map(said)
        .collect()
}

fn said(output: &Output) -> Operation {
    match output {
        Output::Send(bytes) => Operation::read(bytes[0], &bytes[9..]).expect("it is one"),
        other => panic!("{other:?}"),
    }
}

fn reattaches(said: &[Operation]) -> (u32, Option<HeldRound>) {
    match said {
        [Operation::Reattach(reattach)] => {
            let Reattach { join, holds, .. } = &**reattach;
            (join.attempt, holds.clone())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_join_goes_on_over_a_new_connection_as_the_same_one() {
    let mut client = attached_client();
    for epoch in 3..6 {
        assert_eq!(reattaches(&said_after_outage(&mut client)), (1, None));
        let watched = hear(&mut client, &attached(epoch));
        assert!(matches!(watched[..], [Output::Watch(_)]), "{watched:?}");
    }
}

#[test]
fn a_leave_is_sent_again_when_it_has_no_answer() {
    let mut client = member();
    let left = tell(&mut client, Input::Leave);
    assert_eq!(said(&left[0]), Operation::Leave);
    for _ in 0..2 {
        let said = said_after_outage(&mut client);
        let [Operation::Reattach(reattach)] = &said[..] else {
            panic!("{said:?}");
        };
        assert!(reattach.leaves && client.is_leaving());
    }
    assert_eq!(hear(&mut client, &Event::Left), []);
    assert!(!client.is_leaving());
    // The client no longer needs to send anything.
    assert_eq!(
        tell(&mut client, Input::Disconnected("reset".to_owned())),
        []
    );
    assert_eq!(tell(&mut client, Input::Tick), []);
}

#[test]
fn an_agent_that_leaves_while_there_is_no_coordinator_says_so_to_the_next_one() {
    let mut client = member();
    tell(&mut client, Input::Disconnected("reset".to_owned()));
    assert_eq!(tell(&mut client, Input::Leave), []);
    assert!(client.is_leaving());
    assert_eq!(tell(&mut client, Input::Tick), [Output::Dial]);
    let said: Vec<_> = tell(&mut client, Input::Connected(None))
        .iter()
        .map(said)
        .collect();
    assert!(matches!(&said[..], [Operation::Reattach(reattach)] if reattach.leaves));
    // An agent that joins again does not leave.
    let mut other = member();
    tell(&mut other, Input::Leave);
    tell(&mut other, Input::Disconnected("reset".to_owned()));
    tell(&mut other, JOIN);
    assert!(!other.is_leaving());
}

#[test]
fn a_member_stays_one_without_a_connection() {
    let mut client = member();
    let held = HeldRound {
        round: 5,
        rank: 0,
        master: Some(("a".to_owned(), 4000)),
        succeeded: false,
        size: 2,
        host: None,
    };
    let said = said_after_outage(&mut client);
    assert_eq!(reattaches(&said), (1, Some(held.clone())));
    // Another coordinator waits for missing participants before it reports their loss.
    let outputs = hear(&mut client, &attached(4));
    let [Output::Watch(_), Output::LossesKnownWithin(within)] = outputs[..] else {
        panic!("{outputs:?}");
    };
    let seconds = Duration::from_secs;
    assert!((seconds(4)..seconds(5)).contains(&within), "{within:?}");
    // The agent repeats its next report, which may not have arrived.
    tell(&mut client, Input::Succeeded(5));
    let said = said_after_outage(&mut client);
    let succeeded = HeldRound {
        succeeded: true,
        ..held
    };
    assert_eq!(reattaches(&said), (1, Some(succeeded)));
    let outputs = hear(&mut client, &Event::AllSucceeded { round: 5 });
    assert_eq!(outputs, [Output::AllSucceeded(5)]);
}

#[test]
fn an_address_that_was_published_is_said_again() {
    let mut client = formed_client();
    let (_, unpublished) = reattaches(&said_after_outage(&mut client));
    assert_eq!(unpublished.unwrap().master, None);
    hear(&mut client, &attached(3));
    let publish = Input::Publish {
        round: 5,
        addr: "a",
        port: 4000,
    };
    tell(&mut client, publish);
    let (_, published) = reattaches(&said_after_outage(&mut client));
    assert_eq!(published.unwrap().master, Some(("a".to_owned(), 4000)));
}

#[test]
fn a_member_whose_round_is_over_joins_with_another_number() {
    let mut client = member();
    assert!(reattaches(&said_after_outage(&mut client)).1.is_some());
    hear(&mut client, &attached(4));
    let over = Event::Membership {
        round: 5,
        waiting: 0,
        reason: "node b is lost".to_owned(),
    };
    let outputs = hear(&mut client, &over);
    assert!(matches!(outputs[..], [Output::Changed(_)]), "{outputs:?}");
    tell(&mut client, JOIN);
    assert_eq!(reattaches(&said_after_outage(&mut client)), (2, None));
}

#[test]
fn a_failure_is_said_again() {
    let mut client = member();
    tell(&mut client, Input::Failed("disk full"));
    let said = said_after_outage(&mut client);
    let failed = Operation::Failed {
        reason: "disk full".to_owned(),
    };
    assert_eq!(said[1..], [failed]);
}

#[test]
fn a_coordinator_that_another_one_has_followed_is_not_obeyed() {
    let mut client = member();
    said_after_outage(&mut client);
    hear(&mut client, &attached(5));
    said_after_outage(&mut client);
    assert_eq!(hear(&mut client, &attached(4)), [Output::HangUp]);
}

#[test]
fn a_round_that_cannot_be_recovered_is_over_with_its_connection() {
    let mut client = attached_client();
    hear(&mut client, &formed(5, 1));
    hear(&mut client, &master(5));
    tell(&mut client, Input::Disconnected("reset".to_owned()));
    tell(&mut client, Input::Tick);
    let outputs = tell(&mut client, Input::Connected(None));
    assert!(
        matches!(
            outputs[..],
            [Output::Changed(RoundChange::Membership { round: 5, .. })]
        ),
        "{outputs:?}"
    );
}

#[test]
fn a_coordinator_is_waited_for_as_long_as_it_said_with_a_message_every_10_s() {
    let mut client = member();
    at(&mut client, 1.0, Input::Disconnected("reset".to_owned()));
    let (mut told, mut seconds) = (Vec::new(), 1.0);
    let lost = loop {
        assert!(seconds < 100.0);
        if at(&mut client, seconds, Input::Tick) == [Output::Dial] {
            let refused = Input::Disconnected("refused".to_owned());
            match &at(&mut client, seconds, refused)[..] {
                [] => {}
                [Output::Missing(missing)] => told.push(missing.elapsed.as_secs()),
                [Output::Changed(RoundChange::Lost { .. })] => break seconds,
                other => panic!("{other:?}"),
            }
        }
        seconds += 0.25;
    };
    assert!((61.0..62.0).contains(&lost), "{lost}");
    assert_eq!(told, [1, 11, 21, 31, 41, 51]);
}

#[test]
fn the_loss_of_a_silent_machine_is_said_before_another_attempt_to_reach_it() {
    let mut client = member();
    let broke = || Input::Disconnected("connection timed out".to_owned());
    let outputs = at(&mut client, 2.5, broke());
    let [Output::Missing(missing), Output::LossesKnownWithin(TIMEOUT)] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    assert_eq!(missing.what.as_deref(), Some("connection timed out"));
    assert_eq!(
        (missing.elapsed.as_millis(), missing.left.as_secs()),
        (2500, 60)
    );
    assert!(!missing.is_fenced);
    // With voters, the client immediately asks another one, which usually is the coordinator.
    let mut client = member().among_voters();
    let losses = Output::LossesKnownWithin(TIMEOUT);
    assert_eq!(at(&mut client, 2.5, broke()), [losses]);
}

#[test]
fn a_coordinator_that_says_nothing_is_asked_and_then_the_other_voters_are() {
    let mut client = member().among_voters();
    // Heartbeats at first, and one more.
    for seconds in [0.75, 1.0, 1.5] {
        let beat = at(&mut client, seconds, Input::Tick);
        assert!(matches!(beat[..], [Output::Send(_)]), "{seconds}: {beat:?}");
    }
    let without_beats = |mut outputs: Vec<Output>| {
        outputs.retain(|output| !matches!(output, Output::Send(_)));
        outputs
    };
    assert_eq!(at(&mut client, 1.9, Input::Tick), []);
    assert_eq!(at(&mut client, 2.0, Input::Tick), [Output::Search]);
    // The voters report the same coordinator.
    let outputs = without_beats(at(&mut client, 3.0, Input::Tick));
    let [Output::Search, Output::Missing(missing)] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    assert_eq!((&missing.what, missing.elapsed.as_secs()), (&None, 3));
    // The connection stays: a slow process is not lost.
    let mut alive = Vec::new();
    Event::Alive(None).write(&mut alive);
    assert_eq!(at(&mut client, 3.5, Input::Bytes(&alive)), []);
    assert_eq!(without_beats(at(&mut client, 5.4, Input::Tick)), []);
    // The voters report another coordinator.
    let outputs = without_beats(at(&mut client, 6.4, Input::Tick));
    assert_eq!(outputs, [Output::Search]);
    let moved = Input::Disconnected("another voter is now the coordinator".to_owned());
    let losses = Output::LossesKnownWithin(TIMEOUT);
    assert_eq!(at(&mut client, 6.4, moved), [losses]);
    assert_eq!(at(&mut client, 6.4, Input::Tick), [Output::Dial]);
    let outputs = at(&mut client, 6.5, Input::Connected(None));
    let said: Vec<_> = outputs.iter().map(said).collect();
    assert!(matches!(said[..], [Operation::Reattach(_)]), "{said:?}");
}

#[test]
fn an_agent_that_says_where_it_is_from_says_that_it_hangs_up() {
    for from in [Some("10.0.0.2:51000"), None] {
        let mut client = member();
        tell(&mut client, Input::Disconnected("reset".to_owned()));
        tell(&mut client, Input::Tick);
        let outputs = tell(&mut client, Input::Connected(from));
        let Operation::Reattach(reattach) = said(&outputs[0]) else {
            panic!("{outputs:?}");
        };
        assert_eq!(reattach.join.from.as_deref(), from);
        let mut nonsense = tell(&mut client, Input::Bytes(&[0xff; 16]));
        assert_eq!(nonsense.pop(), Some(Output::HangUp));
        let word: Vec<_> = nonsense.iter().map(said).collect();
        assert_eq!(
            word.contains(&Operation::Detach),
            from.is_some(),
            "{word:?}"
        );
    }
}

#[test]
fn a_coordinator_in_the_same_process_is_sent_a_heartbeat_every_5_s_and_is_not_asked_for_a_word() {
    for (in_process, beats, quiet) in [(true, [0.75, 5.75], 10.0), (false, [0.75, 1.5], 2.5)] {
        let mut client = formed_client();
        let authority = Authority {
            in_process,
            ..authority(3)
        };
        hear(&mut client, &Event::Attached(authority));
        hear(&mut client, &master(5));
        for seconds in beats {
            let due = Mono::from_origin(Duration::from_secs_f64(seconds));
            assert_eq!(client.deadline(), Some(due));
            let outputs = at(&mut client, seconds, Input::Tick);
            let [beat] = &outputs[..] else {
                panic!("{outputs:?}");
            };
            assert_eq!(said(beat), Operation::Heartbeat);
            let mut alive = Vec::new();
            Event::Alive(None).write(&mut alive);
            assert_eq!(at(&mut client, seconds, Input::Bytes(&alive)), []);
        }
        // The coordinator no longer answers.
        let asked = at(&mut client, quiet, Input::Tick);
        assert_eq!(asked.is_empty(), in_process, "{asked:?}");
    }
}

#[test]
fn an_agent_that_asks_for_its_lease_sends_no_heartbeats_beside_that() {
    // In a lease of 3 s: four questions, or two.
    for (in_process, questions) in [(false, 6), (true, 3)] {
        let said = said_with_a_fence(in_process, 4.0);
        let is_lease = |operation: &Operation| matches!(operation, Operation::Lease { .. });
        assert!(said.iter().all(is_lease), "{said:?}");
        assert_eq!(said.len(), questions, "{said:?}");
    }
}

#[test]
fn a_report_without_a_viewer_goes_along_with_the_next_question_about_the_lease() {
    let report = |has_viewer| Report {
        has_viewer,
        message: b"{}".to_vec(),
        ..Report::default()
    };
    let (mut client, _) = member_with_a_fence(false);
    let mut bytes = Vec::new();
    Event::Backed { number: 1 }.write(&mut bytes);
    at(&mut client, 0.1, Input::Bytes(&bytes));
    assert_eq!(at(&mut client, 0.2, Input::Report(report(false))), []);
    let sent = at(&mut client, 1.0, Input::Tick);
    let [Output::Send(bytes)] = &sent[..] else {
        panic!("{sent:?}");
    };
    let mut expected = Vec::new();
    Operation::Report(report(false)).write(&mut expected);
    assert!(matches!(said(&sent[0]), Operation::Lease { number: 2, .. }));
    assert!(bytes.ends_with(&expected), "{bytes:?}");
    let sent = at(&mut client, 1.1, Input::Report(report(true)));
    assert_eq!(said(&sent[0]), Operation::Report(report(true)));
    // Without a lease, no report waits.
    let mut client = member();
    let sent = tell(&mut client, Input::Report(report(false)));
    assert_eq!(said(&sent[0]), Operation::Report(report(false)));
}

#[test]
fn workers_with_a_fence_are_not_said_to_be_left_alone() {
    let (mut client, _) = member_with_a_fence(false);
    let broke = Input::Disconnected("connection timed out".to_owned());
    let outputs = at(&mut client, 2.5, broke);
    let missing = outputs.iter().find_map(|output| match output {
        Output::Missing(missing) => Some(missing),
        _ => None,
    });
    assert!(
        missing.is_some_and(|missing| missing.is_fenced),
        "{outputs:?}"
    );
}

/// Returns an agent with a fence, and its outputs after its round has formed.
fn member_with_a_fence(in_process: bool) -> (NativeClient, Vec<Output>) {
    let mut client = joining_client(Settings {
        fence: FencePolicy::Auto,
        ..Settings::new(1, 2)
    });
    let authority = Authority {
        in_process,
        ..authority(3)
    };
    hear(&mut client, &Event::Attached(authority));
    let (round, acts) = (5, true);
    hear(&mut client, &Event::Fence { round, acts });
    let outputs = form(&mut client);
    (client, outputs)
}

#[test]
fn the_coordinator_turns_the_fence_of_a_round_on_and_off() {
    let settings = Settings {
        fence: FencePolicy::Auto,
        ..Settings::new(1, 2)
    };
    let mut client = joining_client(settings);
    hear(&mut client, &Event::Attached(authority(3)));
    let none = Output::Lease {
        round: 5,
        ends: None,
    };
    assert!(form(&mut client).contains(&none));
    // Without a fence, the workers start without a lease.
    let joined = hear(&mut client, &master(5));
    assert!(matches!(joined[..], [Output::Joined(_)]), "{joined:?}");
    let fence = |acts| Event::Fence { round: 5, acts };
    let question = hear(&mut client, &fence(true));
    let asks = Operation::Lease {
        number: 1,
        standing: Standing::Asks,
    };
    assert_eq!(question.iter().map(said).collect::<Vec<_>>(), [asks]);
    assert_eq!(hear(&mut client, &fence(true)), [], "it is on already");
    let granted = hear(&mut client, &Event::Backed { number: 1 });
    let lease_of = |output: &Output| match output {
        Output::Lease { ends, .. } => *ends,
        _ => None,
    };
    assert!(granted.iter().any(|output| lease_of(output).is_some()));
    let outputs = hear(&mut client, &fence(false));
    let [lifted, end] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    let expected = Operation::Lease {
        number: 0,
        standing: Standing::Lifted,
    };
    assert_eq!((said(lifted), end), (expected, &none));
    // An answer to an earlier question changes nothing.
    assert_eq!(hear(&mut client, &Event::Backed { number: 1 }), []);
}

/// Returns the operations that an agent with a fence sends in `length` seconds.
fn said_with_a_fence(in_process: bool, length: f64) -> Vec<Operation> {
    let (mut client, mut outputs) = member_with_a_fence(in_process);
    let mut said = vec![];
    let mut seconds = 0.0;
    while seconds < length {
        for output in outputs {
            let Output::Send(bytes) = output else {
                continue;
            };
            let operation = Operation::read(bytes[0], &bytes[9..]).expect("it is one");
            if let Operation::Lease { number, .. } = operation {
                let mut backed = Vec::new();
                Event::Backed { number }.write(&mut backed);
                at(&mut client, seconds, Input::Bytes(&backed));
            }
            said.push(operation);
        }
        seconds += 0.05;
        outputs = at(&mut client, seconds, Input::Tick);
    }
    said
}

#[test]
fn a_join_without_a_connection_ends_after_the_join_timeout() {
    let mut settings = Settings::new(3, 3);
    settings.join_timeout = Duration::from_secs(8);
    let mut client = new_client(settings).running(Some(Program::new("train.py", b"", true)));
    tell(&mut client, JOIN);
    let arrived = Arrived {
        nodes: 2,
        named: vec!["a".to_owned(), "b".to_owned()],
        is_spare: false,
    };
    hear(&mut client, &Event::Alive(Some(arrived)));
    at(&mut client, 7.5, Input::Disconnected("reset".to_owned()));
    let refused = at(&mut client, 8.0, Input::Tick);
    let [
        Output::NotJoined(NativeFailure::Refused(AgentRefusal::JoinTimeout { joined, .. })),
        ..,
    ] = &refused[..]
    else {
        panic!("{refused:?}")
    };
    assert_eq!(joined, &["a", "b"]);
}
