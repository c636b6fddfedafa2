use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::element::ElementType;

const U8: ElementType = ElementType::U8;

fn called(sequence: Operation, operation: call::GroupOperation, elements: u64) -> Input {
    Input::Called(Call {
        operation,
        element: U8,
        elements,
        sequence,
    })
}

fn send(sequence: Operation, to: u32, tag: u32, elements: u64) -> Input {
    called(sequence, call::GroupOperation::Send { to, tag }, elements)
}

fn receive(sequence: Operation, from: Option<u32>, tag: u32, elements: u64) -> Input {
    called(
        sequence,
        call::GroupOperation::Receive { from, tag },
        elements,
    )
}

fn envelope(tag: u32, elements: u64, number: u64) -> Envelope {
    Envelope {
        tag,
        element: U8,
        elements,
        number,
    }
}

fn announced(from: u32, tag: u32, elements: u64, number: u64) -> Input {
    Input::Arrived(Arrived {
        from,
        envelope: envelope(tag, elements, number),
        values: None,
    })
}

fn eager(from: u32, tag: u32, values: Vec<u8>, number: u64) -> Input {
    Input::Arrived(Arrived {
        from,
        envelope: envelope(tag, values.len() as u64, number),
        values: Some(values),
    })
}

impl Matching {
    fn after(&mut self, input: Input) -> Vec<Output> {
        self.handle(input);
        std::iter::from_fn(|| self.poll_output()).collect()
    }

    /// Returns the receive, and the sender and number of the message that it got.
    fn matched_after(&mut self, input: Input) -> Option<(Operation, u32, u64)> {
        self.after(input)
            .into_iter()
            .find_map(|output| match output {
                Output::Act(operation, from, Action::Match { number }) => {
                    Some((operation, from, number))
                }
                _ => None,
            })
    }
}

#[test]
fn receives_are_matched_in_the_order_of_the_calls() {
    // Columns: posted receives (sender, tag), arriving messages (sender, tag), and the receive of
    // each message.
    type Row<'a> = (
        &'a [(Option<u32>, u32)],
        &'a [(u32, u32)],
        &'a [Option<u64>],
    );
    let table: [Row<'_>; 6] = [
        (
            &[(Some(1), 0), (None, 0)],
            &[(1, 0), (2, 0)],
            &[Some(0), Some(1)],
        ),
        (
            &[(None, 0), (Some(1), 0)],
            &[(1, 0), (1, 0)],
            &[Some(0), Some(1)],
        ),
        (
            &[(Some(1), 0), (None, 0)],
            &[(2, 0), (1, 0)],
            &[Some(1), Some(0)],
        ),
        (
            &[(Some(1), 7), (None, 0)],
            &[(1, 0), (1, 7)],
            &[Some(1), Some(0)],
        ),
        (
            &[(Some(1), 0)],
            &[(2, 0), (1, 1), (1, 0)],
            &[None, None, Some(0)],
        ),
        (
            &[(None, 3), (None, 3)],
            &[(2, 3), (1, 3)],
            &[Some(0), Some(1)],
        ),
    ];
    for (posted, messages, expected) in table {
        // First all receives are posted.
        let mut matching = Matching::default();
        for (operation, &(from, tag)) in (0..).zip(posted) {
            assert_eq!(matching.after(receive(operation, from, tag, 5)), []);
        }
        let mut numbers = BTreeMap::new();
        for (&(from, tag), expected) in messages.iter().zip(expected) {
            let number = numbers.entry(from).or_insert(0);
            *number += 1;
            let found = matching.matched_after(announced(from, tag, 5, *number));
            let expected = expected.map(|operation| (operation, from, *number));
            assert_eq!(found, expected, "{posted:?} {messages:?}");
        }
    }
}

#[test]
fn messages_that_came_first_are_taken_in_the_order_in_which_they_came() {
    let mut matching = Matching::default();
    for (from, tag, number) in [(2, 0, 1), (1, 0, 1), (1, 9, 2), (1, 0, 3), (2, 0, 2)] {
        assert_eq!(matching.after(announced(from, tag, 5, number)), []);
    }
    for (operation, from, tag, expected) in [
        (0, Some(1), 0, (1, 1)),
        (1, None, 0, (2, 1)),
        (2, None, 0, (1, 3)),
        (3, Some(1), 9, (1, 2)),
        (4, None, 0, (2, 2)),
    ] {
        let found = matching.matched_after(receive(operation, from, tag, 5));
        assert_eq!(found, Some((operation, expected.0, expected.1)));
    }
    assert!(matching.arrived.is_empty() && matching.posted.is_empty());
}

#[test]
fn another_length_is_a_mismatch_that_has_the_envelope() {
    let mut matching = Matching::default();
    matching.after(receive(4, None, 1, 5));
    let envelope = envelope(1, 4 << 30, 1);
    let mismatch = Output::Act(4, 3, Action::Mismatch { envelope });
    assert_eq!(matching.after(announced(3, 1, 4 << 30, 1)), [mismatch]);
}

#[test]
fn values_of_an_announced_message_come_in_pieces_that_fit() {
    let mut matching = Matching::default();
    matching.after(receive(0, Some(1), 0, 10));
    matching.after(announced(1, 0, 10, 1));
    assert_eq!(matching.room(1, 1, 4), Ok((0, 0)));
    assert_eq!(matching.after(received(1, 4)), []);
    assert_eq!(matching.room(1, 1, 6), Ok((0, 4)));
    for (number, bytes) in [(1, 7), (1, 0), (2, 1)] {
        matching.room(1, number, bytes).unwrap_err();
    }
    matching.room(2, 1, 1).unwrap_err();
    let done = Output::Act(0, 1, Action::Done);
    assert_eq!(matching.after(received(1, 6)), [done]);
    matching.room(1, 1, 0).unwrap_err();
}

fn received(number: u64, bytes: usize) -> Input {
    Input::Received {
        from: 1,
        number,
        bytes,
    }
}

#[test]
fn a_sender_keeps_to_its_window() {
    let mut matching = Matching::default();
    let mut how = Vec::new();
    for operation in 0..WINDOW as u64 + 2 {
        let posted = matching.after(send(operation, 1, 0, EAGER as u64));
        how.extend(posted.into_iter().map(|output| match output {
            Output::Act(_, _, Action::Post { eager, .. }) => eager,
            other => panic!("{other:?}"),
        }));
    }
    // The values of the first messages were sent with them. The last messages were not sent at all.
    assert_eq!(how.len(), WINDOW);
    assert_eq!(
        how.iter().filter(|eager| **eager).count(),
        EAGER_WINDOW / EAGER
    );
    // A match makes room for the values of another message.
    let next = matching.after(Input::Matched { by: 1, number: 1 });
    assert!(
        matches!(
            next[..],
            [Output::Act(operation, _, Action::Post { eager: true, .. })]
                if operation == WINDOW as u64
        ),
        "{next:?}"
    );
    let next = matching.after(Input::Matched { by: 1, number: 5 });
    assert!(
        matches!(
            next[..],
            [
                Output::Act(4, _, Action::Stream { number: 5 }),
                Output::Act(_, _, Action::Post { eager: false, .. })
            ]
        ),
        "{next:?}"
    );
}

#[test]
fn whatever_a_rank_sends_its_share_of_memory_is_bounded() {
    let violation = |outputs: Vec<Output>, text: &str| {
        assert!(
            matches!(&outputs[..], [Output::Violation { by: 1, found }] if found.contains(text)),
            "{outputs:?}"
        );
    };
    // Announcements, each with another tag.
    let mut matching = Matching::default();
    for number in 1..=WINDOW as u64 {
        assert_eq!(
            matching.after(announced(1, number as u32, 4 << 30, number)),
            []
        );
    }
    let next = WINDOW as u64 + 1;
    violation(matching.after(announced(1, 0, 1, next)), "1024");
    // Another rank has a separate share.
    assert_eq!(matching.after(announced(2, 0, 1, 1)), []);
    // Eager values.
    let mut matching = Matching::default();
    for number in 1..=(EAGER_WINDOW / EAGER) as u64 {
        assert_eq!(matching.after(eager(1, 0, vec![0; EAGER], number)), []);
    }
    let next = (EAGER_WINDOW / EAGER) as u64 + 1;
    violation(
        matching.after(eager(1, 0, vec![0], next)),
        &EAGER_WINDOW.to_string(),
    );
    // Wrong numbers.
    let mut matching = Matching::default();
    violation(
        matching.after(announced(1, 0, 1, 2)),
        "instead of message 1",
    );
    let match_of_none = Input::Matched { by: 1, number: 1 };
    violation(matching.after(match_of_none), "does not exist");
}

/// Two ranks and the messages in flight between them, first in, first out.
#[derive(Default)]
struct Pair {
    ranks: [Matching; 2],
    on_the_way: [VecDeque<Input>; 2],
    /// Message that each receive got: the operation of the send.
    got: BTreeMap<Operation, Operation>,
    /// Operation of the send, by its rank and number.
    sends: BTreeMap<(usize, u64), Operation>,
}

impl Pair {
    fn handle(&mut self, rank: usize, input: Input) {
        let other = 1 - rank;
        self.ranks[rank].handle(input);
        while let Some(output) = self.ranks[rank].poll_output() {
            let Output::Act(operation, _, action) = output else {
                panic!("{output:?}");
            };
            match action {
                Action::Post { envelope, eager } => {
                    self.sends.insert((rank, envelope.number), operation);
                    let bytes = envelope.bytes().unwrap();
                    self.on_the_way[other].push_back(Input::Arrived(Arrived {
                        from: rank as u32,
                        envelope,
                        values: eager.then(|| vec![0; bytes]),
                    }));
                }
                Action::Match { number } => {
                    self.got.insert(operation, self.sends[&(other, number)]);
                    self.on_the_way[other].push_back(Input::Matched {
                        by: rank as u32,
                        number,
                    });
                }
                Action::Stream { number } => {
                    let peer = &self.ranks[other].peers[&(rank as u32)];
                    let bytes = peer.incoming[&number].bytes;
                    self.on_the_way[other].push_back(Input::Received {
                        from: rank as u32,
                        number,
                        bytes,
                    });
                }
                Action::Deliver { .. } | Action::Done => {}
                wrong => panic!("{wrong:?}"),
            }
        }
        for peer in self.ranks[rank].peers.values() {
            assert!(peer.kept <= WINDOW && peer.kept_bytes <= EAGER_WINDOW);
        }
    }

    fn carry(&mut self, to: usize) -> bool {
        let next = self.on_the_way[to].pop_front();
        next.map(|input| self.handle(to, input)).is_some()
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A rank sends with a tag.
    Send(usize, u32),
    /// A rank receives with a tag, from the other rank or from any rank.
    Receive(usize, u32, bool),
    Carry(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step =
        (0..3, 0..2_usize, 0..3_u32, any::<bool>()).prop_map(
            |(kind, rank, tag, flag)| match kind {
                0 => Step::Send(rank, tag),
                1 => Step::Receive(rank, tag, flag),
                _ => Step::Carry(rank),
            },
        );
    prop::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn messages_with_one_tag_arrive_in_the_order_of_the_calls(steps in steps()) {
        // All messages of one tag have the same length; a long message is announced.
        let length = |tag: u32| if tag == 1 { EAGER as u64 + 1 } else { 9_000 };
        let mut pair = Pair::default();
        let mut sent: BTreeMap<(usize, u32), Vec<Operation>> = BTreeMap::new();
        let mut posted: BTreeMap<(usize, u32), Vec<Operation>> = BTreeMap::new();
        let mut next = 0;
        let mut apply = |pair: &mut Pair, step| {
            next += 1;
            match step {
                Step::Send(rank, tag) => {
                    sent.entry((1 - rank, tag)).or_default().push(next);
                    pair.handle(rank, send(next, 1 - rank as u32, tag, length(tag)));
                }
                Step::Receive(rank, tag, any) => {
                    posted.entry((rank, tag)).or_default().push(next);
                    let from = (!any).then_some(1 - rank as u32);
                    pair.handle(rank, receive(next, from, tag, length(tag)));
                }
                Step::Carry(rank) => { pair.carry(rank); }
            }
        };
        for step in steps {
            apply(&mut pair, step);
        }
        while pair.carry(0) || pair.carry(1) {}
        let none = Vec::new();
        for rank in 0..2 {
            for tag in 0..3 {
                let sent = sent.get(&(rank, tag)).unwrap_or(&none);
                let posted = posted.get(&(rank, tag)).unwrap_or(&none);
                let pairs = sent.len().min(posted.len());
                for (send, receive) in sent.iter().zip(posted) {
                    prop_assert_eq!(pair.got.get(receive), Some(send));
                }
                for receive in &posted[pairs..] {
                    prop_assert_eq!(pair.got.get(receive), None);
                }
            }
        }
    }
}
