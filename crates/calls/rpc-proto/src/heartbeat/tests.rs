use super::*;

fn at(seconds: f64) -> Mono {
    Mono::from_origin(Duration::from_secs_f64(seconds))
}

/// Report of the operating system at each time.
type Peer<'a> = &'a dyn Fn(f64) -> Seen;

/// Polls as requested, and returns the time at which the host counts as lost.
fn followed(rhythm: Rhythm, deadline: f64, peer: Peer<'_>) -> Option<f64> {
    let mut heartbeat = Heartbeat::new(rhythm, at(0.0));
    loop {
        let now = heartbeat.next();
        let seconds = now.since(Mono::ZERO).as_secs_f64();
        if seconds > deadline {
            return None;
        }
        if heartbeat.look(now, &peer(seconds)).is_some() {
            return Some(seconds);
        }
    }
}

fn seen(silent: f64, sent: f64, unacknowledged: bool, probes: u32) -> Seen {
    Seen {
        silent: Duration::from_secs_f64(silent),
        sent: Duration::from_secs_f64(sent),
        unacknowledged,
        probes,
    }
}

fn default() -> Rhythm {
    Rhythm::new(DEFAULT_LIMIT)
}

/// Returns the number of probes: one each beat after the last arrival.
fn probes(silent: f64) -> u32 {
    silent as u32
}

#[test]
fn a_rhythm_has_whole_seconds_and_as_many_probes_as_fit() {
    let rhythm = |limit| {
        let rhythm = Rhythm::new(Duration::from_secs_f64(limit));
        (
            rhythm.limit().as_secs_f64(),
            rhythm.beat().as_secs(),
            rhythm.probes(),
        )
    };
    assert_eq!(rhythm(5.0), (5.0, 1, 4));
    assert_eq!(rhythm(2.5), (2.5, 1, 2));
    assert_eq!(rhythm(60.0), (60.0, 12, 4));
    assert_eq!(rhythm(13.0), (13.0, 2, 6));
    // Not shorter than the operating system supports.
    assert_eq!(rhythm(0.1), (2.0, 1, 1));
}

/// Checks that a host that vanishes is reported at the limit.
///
/// `gone` is the report of the operating system after some silence.
fn is_noticed_at_the_limit(gone: impl Fn(f64) -> Seen) {
    for cut in [0.3, 2.0, 7.99] {
        let found = followed(default(), 60.0, &|now| match now - cut {
            silent if silent >= 0.0 => gone(silent),
            _ => seen(0.1, 9.0, false, 0),
        });
        let silent = found.unwrap() - cut;
        assert!((4.99..5.2).contains(&silent), "{silent} s after {cut}");
    }
}

#[test]
fn a_host_that_vanishes_while_nothing_is_said_is_noticed_at_the_limit() {
    is_noticed_at_the_limit(|silent| seen(silent, silent + 9.0, false, probes(silent)));
}

#[test]
fn a_host_that_vanishes_with_calls_on_their_way_is_noticed_at_the_limit() {
    is_noticed_at_the_limit(|silent| seen(silent, silent % 0.8, true, 0));
}

#[test]
fn a_call_that_comes_late_gives_the_dead_no_time() {
    // Until 4.5 s only probes are sent; then a call starts. From then on the system retransmits,
    // and its count of probes is 0.
    let found = followed(default(), 60.0, &|now| match now {
        now if now < 4.5 => seen(now, now + 1.0, false, probes(now)),
        now => seen(now, 0.2, true, 0),
    });
    assert!((4.99..5.2).contains(&found.unwrap()), "{found:?}");
}

#[test]
fn who_answers_is_never_dead_however_long_it_takes_nothing() {
    // The peer's window stays closed. Probes are answered, and the gaps between them grow.
    let found = followed(default(), 3600.0, &|now| {
        let since_probe = (now + 1.0).log2().fract() * now;
        let answered = since_probe > 0.01;
        seen(since_probe, now, false, u32::from(!answered))
    });
    assert_eq!(found, None);
    // Every other probe is lost.
    let found = followed(default(), 3600.0, &|now| {
        let silent = now % 20.0;
        seen(silent, now, false, u32::from(silent >= 10.0))
    });
    assert_eq!(found, None);
}

#[test]
fn who_answers_late_is_not_dead() {
    // The peer acknowledges all data after 4 s, all the time.
    let found = followed(default(), 600.0, &|now| {
        let silent = now % 4.0;
        seen(silent, silent / 2.0, true, 0)
    });
    assert_eq!(found, None);
}

#[test]
fn silence_without_a_question_means_nothing() {
    let found = followed(default(), 600.0, &|now| seen(now, now + 1.0, true, 0));
    assert_eq!(found, None, "no data was sent after the last arrival");
}

#[test]
fn who_was_blind_blames_nobody() {
    let mut heartbeat = Heartbeat::new(default(), at(0.0));
    assert_eq!(heartbeat.look(at(1.0), &seen(1.0, 0.1, true, 0)), None);
    // This process was stopped for a minute.
    let long_ago = seen(61.0, 0.1, true, 0);
    assert_eq!(heartbeat.look(at(61.0), &long_ago), None);
    assert_eq!(heartbeat.look(at(62.0), &seen(0.5, 0.1, true, 0)), None);
    // If the host really is lost, the loss is reported once the host had the time to answer.
    assert_eq!(heartbeat.look(at(122.0), &seen(60.5, 0.1, true, 0)), None);
    assert_eq!(heartbeat.look(at(123.0), &seen(61.5, 0.1, true, 0)), None);
    let silent = heartbeat.look(at(125.5), &seen(64.0, 0.1, true, 0));
    assert_eq!(silent, Some(Duration::from_secs(64)));
}
