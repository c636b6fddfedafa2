//! An agent's side of native rendezvous.

use std::time::Duration;

use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now, Wall};
use rdzv_rendezvous_proto::coordinator::wire::{Event, Operation, Program, Refusal};
use rdzv_rendezvous_proto::native_client::{Change, Failure, Input, NativeClient, Output};
use rdzv_rendezvous_proto::waiting::Arrived;
use rdzv_rendezvous_proto::{NodeDesc, Settings};

fn tell(client: &mut NativeClient, input: Input<'_>) -> Vec<Output> {
    client.handle(Now::default(), input);
    std::iter::from_fn(|| client.poll_output()).collect()
}

fn hear(client: &mut NativeClient, event: &Event) -> Vec<Output> {
    let mut bytes = Vec::new();
    event.write(&mut bytes);
    tell(client, Input::Bytes(&bytes))
}

#[test]
fn a_run_that_ends_before_the_workers_could_meet_ends_the_join() {
    let me = NodeDesc {
        addr: "b".to_owned(),
        pid: 1,
        local_id: 0,
    };
    let mut client = NativeClient::new(Now::default(), 1, "run", me, Settings::new(2, 2));
    let join = Input::Join {
        role: "default",
        local_world_size: 1,
    };
    assert!(matches!(tell(&mut client, join)[..], [Output::Send(_)]));
    let formed = Event::Formed {
        round: 0,
        rank: 1,
        world_size: 2,
        assignment: None,
    };
    assert_eq!(hear(&mut client, &formed), []);
    assert_eq!(
        hear(&mut client, &Event::Closed),
        [Output::NotJoined(Failure::Refused(Refusal::Closed))]
    );
}

fn at(client: &mut NativeClient, seconds: f64, input: Input<'_>) -> Vec<Output> {
    let now = Now {
        mono: Mono::from_origin(Duration::from_secs_f64(seconds)),
        wall: Wall::default(),
    };
    client.handle(now, input);
    std::iter::from_fn(|| client.poll_output()).collect()
}

const JOIN: Input<'_> = Input::Join {
    role: "default",
    local_world_size: 1,
};

/// A client in round 0 whose coordinator has said nothing for so long that it has hung up, at 15 s.
fn deaf() -> NativeClient {
    let me = NodeDesc {
        addr: "b".to_owned(),
        pid: 1,
        local_id: 0,
    };
    let mut client = NativeClient::new(Now::default(), 1, "run", me, Settings::new(1, 2));
    tell(&mut client, JOIN);
    let formed = Event::Formed {
        round: 0,
        rank: 1,
        world_size: 2,
        assignment: None,
    };
    hear(&mut client, &formed);
    let (round, addr, port) = (0, "a".to_owned(), 1);
    let joined = hear(&mut client, &Event::Master { round, addr, port });
    assert!(matches!(joined[..], [Output::Joined(_)]), "{joined:?}");
    for seconds in [5.0, 10.0] {
        let beat = at(&mut client, seconds, Input::Tick);
        assert!(matches!(beat[..], [Output::Send(_)]), "{beat:?}");
    }
    assert_eq!(at(&mut client, 15.0, Input::Tick), [Output::HangUp]);
    client
}

/// Tries to connect in vain, from 15 s on, until something else comes of it or the time is over.
fn dial_in_vain(client: &mut NativeClient, until: f64) -> (f64, Vec<Output>) {
    let mut seconds = 15.0;
    while seconds < until {
        if at(client, seconds, Input::Tick) == [Output::Dial] {
            let failed = Input::Disconnected("timed out".to_owned());
            let outputs = at(client, seconds, failed);
            if !outputs.is_empty() {
                return (seconds, outputs);
            }
        }
        seconds += 0.25;
    }
    (until, Vec::new())
}

#[test]
fn a_node_that_cannot_hear_its_coordinator_joins_again_when_it_can() {
    let mut client = deaf();
    let (seconds, outputs) = dial_in_vain(&mut client, 75.0);
    assert!((20.0..21.0).contains(&seconds), "{seconds}");
    assert!(
        matches!(
            &outputs[..],
            [Output::Changed(Change::Membership { round: 0, .. })]
        ),
        "{outputs:?}"
    );
    assert_eq!(at(&mut client, 21.0, JOIN), []);
    assert_eq!(at(&mut client, 21.0, Input::Tick), [Output::Dial]);
    let joined = at(&mut client, 22.0, Input::Connected);
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
            [Output::NotJoined(Failure::Unreachable { .. })]
        ),
        "{outputs:?}"
    );
}

#[test]
fn a_coordinator_that_closed_the_connection_is_gone_soon() {
    let mut client = deaf();
    // The network is back, and the process is not.
    at(&mut client, 16.0, Input::Tick);
    at(&mut client, 16.0, Input::Connected);
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
fn a_long_join_asks_who_has_come_and_says_so_at_3_and_30_s() {
    let me = NodeDesc {
        addr: "b".to_owned(),
        pid: 1,
        local_id: 0,
    };
    let mut settings = Settings::new(2, 2);
    settings.keep_alive_interval = Duration::from_secs(1000);
    let program = Some(Program::new("train.py", b"print()", true));
    let client = NativeClient::new(Now::default(), 1, "run", me, settings);
    let mut client = client.running(program);
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
    for seconds in [13.0, 40.0] {
        let deadline = Mono::from_origin(Duration::from_secs_f64(seconds));
        assert_eq!(client.deadline(), Some(deadline));
        let asked = at(&mut client, seconds, Input::Tick);
        assert_eq!(asked, [Output::Send(heartbeat.clone())]);
        let said = at(&mut client, seconds, Input::Bytes(&alive));
        let [Output::Waiting(waiting)] = &said[..] else {
            panic!("{said:?}");
        };
        let left = settings.join_timeout - Duration::from_secs_f64(seconds - 10.0);
        assert_eq!(waiting.left, left);
        assert!(waiting.to_string().contains("1 of 2 (b)"), "{waiting}");
        // The answer to an ordinary heartbeat is nothing to tell of.
        assert_eq!(at(&mut client, seconds, Input::Bytes(&alive)), []);
    }
}
