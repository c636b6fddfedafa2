//! `tables/rendezvous_scripts.txt`: inputs and outputs of one agent's machine.

use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now};
use rdzv_rendezvous_proto::participant::{Input, Output, ParticipantChange, ParticipantFailure};
use rdzv_rendezvous_proto::{NodeDesc, Participant, RendezvousState, Settings};

use crate::text::{node, nodes, now, settings, show, state};

const TABLE: &str = include_str!("../tables/rendezvous_scripts.txt");

#[test]
fn every_script_of_the_table_goes_as_written() {
    let scripts: Vec<_> = TABLE.split("\nscript ").skip(1).collect();
    assert!(scripts.len() > 15, "only {} scripts", scripts.len());
    for script in scripts {
        run(script);
    }
}

fn run(script: &str) {
    let (title, lines) = script.split_once('\n').unwrap();
    let mut lines = lines
        .lines()
        .map(|line| line.split(" # ").next().unwrap().trim())
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let head = lines.next().expect("MIN..MAX NODE");
    let (limits, me) = head.split_once(' ').unwrap();
    let (me, polls) = me
        .trim()
        .strip_suffix(" polls")
        .map_or((me.trim(), false), |me| (me.trim(), true));
    let settings: Settings = settings(limits);
    let mut machine = Participant::new(node(me), settings, 7);
    if polls {
        machine = machine.polling(std::time::Duration::from_secs(1));
    }
    let mut stored = RendezvousState::default();
    for line in lines {
        let location = format!("{title}: {line}");
        let (event, expected) = line
            .split_once("->")
            .unwrap_or_else(|| panic!("{location}"));
        let (time, event) = event.trim().split_once(' ').expect("TIME EVENT");
        let at = now(time);
        if event == "due" {
            let due = machine.deadline().expect("it waits for a time");
            let wanted = at.mono;
            assert!(
                due.since(wanted) < std::time::Duration::from_millis(1)
                    && wanted.since(due) < std::time::Duration::from_millis(1),
                "{location}: it waits for {due:?}"
            );
            continue;
        }
        if event == "quiet" {
            assert_eq!(machine.deadline(), None, "{location}");
            continue;
        }
        let got = happen(&mut machine, at, event, &mut stored);
        assert_eq!(got.join(" | "), expected.trim(), "{location}");
    }
}

fn happen(
    machine: &mut Participant,
    at: Now,
    event: &str,
    stored: &mut RendezvousState,
) -> Vec<String> {
    let (word, rest) = event.split_once(' ').unwrap_or((event, ""));
    let input = match word {
        "join" => Input::Join,
        "leave" => Input::Leave,
        "close" => Input::Close,
        "tick" => Input::Tick,
        "changed" => Input::Changed,
        "gone" => Input::Gone(nodes(rest)),
        "read" if rest == "nothing" => Input::Read(None),
        "read" => Input::Read(Some(state(rest))),
        "won" => Input::Written {
            state: Some(stored.clone()),
            won: true,
        },
        "lost" => Input::Written {
            state: Some(state(rest)),
            won: false,
        },
        _ => panic!("{event}: no such event"),
    };
    machine.handle(at, input);
    let mut outputs = Vec::new();
    while let Some(output) = machine.poll_output() {
        if let Output::Write(written) = &output {
            stored.clone_from(written);
        }
        outputs.push(reported(&output));
    }
    outputs
}

fn names(nodes: &[NodeDesc]) -> String {
    let names: Vec<_> = nodes.iter().map(|node| node.addr.as_str()).collect();
    names.join(" ")
}

fn reported(output: &Output) -> String {
    match output {
        Output::Read => "read".into(),
        Output::Write(state) => format!("write {}", show(state)),
        Output::Joined(formed) => format!(
            "joined {} as {} of {}",
            formed.round,
            formed.rank,
            names(&formed.participants)
        ),
        Output::Changed(ParticipantChange::NodesWaiting(nodes)) => {
            format!("waiting {}", names(nodes))
        }
        Output::Changed(ParticipantChange::NodesLost(nodes)) => format!("lost {}", names(nodes)),
        Output::Changed(ParticipantChange::Dropped) => "dropped".into(),
        Output::Changed(ParticipantChange::Closed) => "run closed".into(),
        Output::Left => "left".into(),
        Output::Closed => "closed".into(),
        Output::Failed(ParticipantFailure::Closed) => "failed: closed".into(),
        Output::Failed(ParticipantFailure::NotNeeded) => "failed: not needed".into(),
        Output::Failed(ParticipantFailure::JoinTimeout { joined, elapsed }) => format!(
            "failed: only {} within {} s",
            names(joined),
            elapsed.as_secs_f64()
        ),
        Output::Failed(ParticipantFailure::WriteTimeout { elapsed }) => {
            format!("failed: no write within {} s", elapsed.as_secs_f64())
        }
    }
}

#[test]
fn a_round_that_is_read_twice_is_joined_once() {
    let mut machine = Participant::new(node("a"), settings("1..1"), 1);
    let mut stored = RendezvousState::default();
    let start = now("0");
    happen(&mut machine, start, "join", &mut stored);
    assert!(machine.deadline().expect("jitter") > Mono::ZERO);
    happen(&mut machine, now("0.3"), "tick", &mut stored);
    happen(&mut machine, now("0.3"), "read nothing", &mut stored);
    let joined = happen(&mut machine, now("0.31"), "won", &mut stored);
    assert_eq!(joined, ["joined 0 as 0 of a"]);
    let again = happen(&mut machine, now("1"), "changed", &mut stored);
    assert_eq!(again, ["read"]);
    let text = format!("read {}", show(&stored));
    assert!(happen(&mut machine, now("1"), &text, &mut stored).is_empty());
}
