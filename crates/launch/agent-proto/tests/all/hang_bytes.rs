//! Tests with arbitrary bytes on the pipes: no panic and no growth.
#![allow(clippy::unwrap_used, reason = "this is all test code")]

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use rdzv_agent_proto::hang::heartbeat::{HeartbeatLimits, Heartbeats};
use rdzv_agent_proto::hang::line_splitter::{LONGEST_LINE, LineSplitter, SplitLine};
use rdzv_agent_proto::hang::timers::{TimerRequest, Timers};
use rdzv_core::rank::LocalRank;
use rdzv_core::time::{Mono, Now, Wall};

/// Generates a line that is nearly a request.
fn nearly_a_request() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:?}")),
        Just("1e999".to_owned()),
        Just("null".to_owned()),
    ];
    (any::<u32>(), ".{0,20}", number, any::<i32>()).prop_map(|(pid, scope, time, signal)| {
        format!(
            "{{\"version\": 1, \"pid\": {pid}, \"scope_id\": {scope:?}, \
             \"expiration_time\": {time}, \"signal\": {signal}}}"
        )
        .into_bytes()
    })
}

proptest! {
    #[test]
    fn lines_are_those_of_the_text_however_it_is_cut(
        runs in vec((prop_oneof![Just(b'\n'), any::<u8>()], 0_usize..6_000), 0..8),
        cuts in vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let runs = runs.iter().map(|(byte, length)| match byte {
            b'\n' => vec![b'\n'; length % 3],
            byte => vec![*byte; *length],
        });
        let text = runs.collect::<Vec<_>>().concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut lines = LineSplitter::default();
        let found: Vec<SplitLine> = cuts
            .windows(2)
            .flat_map(|piece| lines.feed(&text[piece[0]..piece[1]]))
            .collect();
        let mut parts: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        let last = parts.pop().unwrap();
        let whole = |part: &&[u8]| match part.len() {
            ..=LONGEST_LINE => SplitLine::Whole(part.to_vec()),
            _ => SplitLine::TooLong,
        };
        let mut expected: Vec<SplitLine> = parts.iter().map(whole).collect();
        expected.extend((last.len() > LONGEST_LINE).then_some(SplitLine::TooLong));
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_timer_expires_once_or_never(
        lines in vec(prop_oneof![nearly_a_request(), vec(any::<u8>(), 0..200)], 0..40),
        seconds in 0_u32..10,
    ) {
        let mut timers = Timers::default();
        let at = |seconds: u32| Now {
            mono: Mono::ZERO + Duration::from_secs(seconds.into()),
            wall: Wall::from_unix_micros(i64::from(seconds) * 1_000_000),
        };
        for line in &lines {
            if let Ok(request) = TimerRequest::parse(line) {
                prop_assert_eq!(timers.request(at(seconds), request), Ok(()));
            }
        }
        let expired = timers.expired(at(seconds + 1));
        prop_assert!(expired.iter().all(|expiry| !expiry.examined.is_empty()));
        prop_assert_eq!(timers.expired(at(seconds + 1)), []);
        prop_assert!(timers.deadline().is_none_or(|due| due > at(seconds + 1).mono));
    }

    #[test]
    fn any_bytes_are_a_heartbeat(line in vec(any::<u8>(), 0..5_000)) {
        let mut beats = Heartbeats::new(HeartbeatLimits::parse("done=10,10").unwrap());
        let worker = LocalRank(0);
        beats.started(Mono::ZERO, worker);
        beats.beat(Mono::ZERO, 0.0, worker, &line);
        let named_init = line.windows(4).any(|word| word == b"init");
        prop_assume!(!named_init);
        let ten = Mono::ZERO + Duration::from_secs(10);
        prop_assert_eq!(beats.missed(ten).len(), 1);
    }

    #[test]
    fn limits_are_read_or_refused(text in ".{0,40}") {
        let _ = HeartbeatLimits::parse(&text);
    }
}
