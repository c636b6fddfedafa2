//! Runs each attack of the hostile suite on a new worker.
//!
//! An honest worker makes calls at the same time. The memory that an attack takes from the victim
//! is bounded, and most of it is returned when the attackers have left.
//!
//! Attackers are workers of the job that ignore all rules (with its token, if it has one), or any
//! peer that reaches the port.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod announced;
mod flood;
mod handshake;
mod nonsense;
mod peer;
mod unread;
mod victim;
#[path = "../support/worker.rs"]
mod worker;

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use peer::{Peer, Target};
use victim::Victim;

const MIB: usize = 1 << 20;

/// Bytes that one connection may have in flight, the same as for a worker.
const WINDOW: usize = 64 * MIB;

/// Memory for threads, buffers and the allocator, and for noise of the machine.
const NOISE: usize = 32 * MIB;

/// Pause between calls of the honest worker.
/// Without it, these calls would be most of the work of these tests.
pub(crate) const BETWEEN_CALLS: Duration = Duration::from_millis(5);

/// One attack.
#[derive(Clone, Copy)]
pub(crate) struct Attack {
    name: &'static str,
    run: fn(&mut Attacker),
    /// Maximum memory that the attack may take, in bytes.
    peak: usize,
}

/// Creates an attack that may take `peak` bytes of memory.
const fn attack(name: &'static str, peak: usize, run: fn(&mut Attacker)) -> Attack {
    Attack { name, run, peak }
}

/// An attacker and its connections.
pub(crate) struct Attacker {
    target: Target,
    /// Connections that stay open until the end of the attack.
    peers: Vec<Peer>,
}

fn attacks() -> Vec<Attack> {
    let all = [
        announced::ATTACKS,
        flood::ATTACKS,
        unread::ATTACKS,
        handshake::ATTACKS,
        nonsense::ATTACKS,
    ];
    all.concat()
}

/// Runs attacks in order, and fails with everything that went wrong.
fn all_of(attacks: impl Iterator<Item = Attack>, with_token: bool, knows_token: bool) {
    let found: Vec<String> = attacks
        .flat_map(|attack| run_attack(&attack, with_token, knows_token))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Runs one attack, and returns a description of everything that went wrong.
fn run_attack(attack: &Attack, with_token: bool, knows_token: bool) -> Vec<String> {
    let victim = Victim::new(with_token);
    let honest = victim.honest_by_tcp(1);
    honest.ask();
    let mut attacker = Attacker {
        target: victim.target(knows_token),
        peers: Vec::new(),
    };
    let mut found = Vec::new();
    let mut wrong = |what: String| found.push(format!("{}: {what}", attack.name));
    thread::scope(|scope| {
        let (ended, end) = mpsc::channel();
        let attacker = &mut attacker;
        let running = scope.spawn(move || {
            // Dropped at the end of the thread, even after a panic.
            let _ended: mpsc::Sender<()> = ended;
            (attack.run)(attacker);
        });
        while end.recv_timeout(BETWEEN_CALLS) == Err(mpsc::RecvTimeoutError::Timeout) {
            if let Err(error) = honest.try_to_ask() {
                wrong(format!("the honest worker: {error}"));
            }
        }
        running.join().unwrap();
    });
    // A worker that connects now is served as well.
    for worker in [&honest, &victim.honest_by_tcp(2)] {
        if let Err(error) = worker.try_to_ask() {
            wrong(format!("a worker after it: {error}"));
        }
    }
    let peak = victim.peak();
    drop(attacker);
    let left = victim.settled(WINDOW, &honest);
    let name = attack.name;
    println!(
        "{name:<60} token {with_token:<5} known {knows_token:<5} peak {:>4} MiB, left {:>4} MiB",
        peak / MIB,
        left / MIB
    );
    if honest.connections() != 1 {
        wrong("the honest worker lost its connection".to_owned());
    }
    if peak > attack.peak + NOISE {
        wrong(format!("{} MiB at its peak", peak / MIB));
    }
    if left > WINDOW {
        wrong(format!("{} MiB are kept", left / MIB));
    }
    found
}

/// Returns a part of the attacks, for tests that run at the same time.
fn part(number: usize) -> impl Iterator<Item = Attack> {
    attacks().into_iter().skip(number).step_by(2)
}

#[test]
fn workers_of_a_job_without_a_token_harm_nobody_the_first_half() {
    all_of(part(0), false, false);
}

#[test]
fn workers_of_a_job_without_a_token_harm_nobody_the_second_half() {
    all_of(part(1), false, false);
}

#[test]
fn workers_that_know_the_token_harm_nobody_the_first_half() {
    all_of(part(0), true, true);
}

#[test]
fn workers_that_know_the_token_harm_nobody_the_second_half() {
    all_of(part(1), true, true);
}

#[test]
fn peers_that_do_not_know_the_token_harm_nobody() {
    // These attackers get no further than the greeting.
    let refused = |attack: Attack| {
        if attack.name.contains("1100 peers") {
            attack
        } else {
            Attack { peak: 0, ..attack }
        }
    };
    all_of(attacks().into_iter().map(refused), true, false);
}

#[test]
fn there_are_thirty_attacks_at_least_each_with_a_name_of_its_own() {
    let attacks = attacks();
    let names: BTreeSet<_> = attacks.iter().map(|attack| attack.name).collect();
    assert!(
        attacks.len() >= 30 && names.len() == attacks.len(),
        "{}",
        attacks.len()
    );
}
