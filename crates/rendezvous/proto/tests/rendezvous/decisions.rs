//! `tables/rendezvous_decisions.txt`: one decision at a time.

use rdzv_rendezvous_proto::RendezvousState;
use rdzv_rendezvous_proto::apply::{apply, sanitise};
use rdzv_rendezvous_proto::decide::{self, JoinPhase, Moment};

use crate::text::{node, nodes, now, settings, show, state};

const TABLE: &str = include_str!("../tables/rendezvous_decisions.txt");

#[test]
fn every_decision_of_the_table_is_made() {
    let mut given = (settings("1..1"), RendezvousState::default());
    let mut after: Option<RendezvousState> = None;
    let mut rows = 0;
    for (number, line) in TABLE.lines().enumerate() {
        let line = line.trim();
        let location = format!("line {}: {line}", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(text) = line.strip_prefix("given ") {
            let (limits, text) = text.split_once(' ').unwrap_or((text, ""));
            given = (settings(limits), state(text));
        } else if let Some(text) = line.strip_prefix("=> ") {
            let got = after.take().expect("a decision comes first");
            assert_eq!(show(&got), show(&state(text)), "{location}");
            rows += 1;
        } else {
            let (event, expected) = line.split_once("->").expect("a decision has an arrow");
            let (got, made) = happen(event.trim(), &given.0, &given.1);
            assert_eq!(got, expected.trim(), "{location}");
            after = Some(made);
            rows += 1;
        }
    }
    assert!(rows > 60, "only {rows} rows were found");
}

/// `at 20 join c [rollback|over] [all here]`, or `at 20 sanitise c`.
fn happen(
    event: &str,
    settings: &rdzv_rendezvous_proto::Settings,
    given: &RendezvousState,
) -> (String, RendezvousState) {
    let words: Vec<_> = event.split_whitespace().collect();
    let [_, time, what, me, rest @ ..] = words.as_slice() else {
        panic!("{event}: at TIME WHAT NODE");
    };
    let me = node(me);
    let wall = now(time).wall;
    let moment = Moment {
        wall,
        last_call_over: given
            .deadline
            .is_some_and(|end| end + decide::last_call_extra(given) < wall),
        phase: match rest.first().copied() {
            Some("rollback") => JoinPhase::RollBack,
            Some("over") => JoinPhase::Over,
            _ => JoinPhase::InTime,
        },
        all_here: rest.ends_with(&["all", "here"]),
    };
    let mut made = given.clone();
    let decision = match *what {
        "exit" => decide::exit(given, &me, moment),
        "join" => decide::join(given, &me, settings, moment),
        "leave" => decide::leave(given, &me, moment),
        "close" => decide::close(given, moment),
        "beat" => decide::keep_alive(given, &me, settings, wall),
        "sanitise" => {
            let gone = nodes(&rest.join(" "));
            let oldest = wall - settings.lost_after();
            let lost = sanitise(&mut made, &me, settings, |node, last| {
                last < oldest || gone.contains(node)
            });
            let names: Vec<_> = lost.into_iter().map(|node| node.addr).collect();
            return (names.join(" "), made);
        }
        _ => panic!("{event}: what is {what}?"),
    };
    apply(&mut made, &me, settings, decision.action, wall);
    (format!("{:?}: {}", decision.action, decision.reason), made)
}
