//! Members that lie.
//!
//! In frames of an honest group, single numbers or bytes are replaced, and some frames are
//! repeated. A member may accept or refuse such a frame; no machine may end its process over it.

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;
use rdzv_consensus::wire::opcode;
use rdzv_consensus::{
    Consensus, ConsensusRule, Input, Kind, Output, Settings, VoterChange, VoterId,
};
use rdzv_core::machine::Machine as _;
use rdzv_core::rules::Rules;
use rdzv_core::time::{Mono, Now};

/// Offsets of the numbers in a message.
///
/// They are term, log term, index, commit, commit term and hint, in the layout of
/// `rdzv_consensus::wire`.
const FIELDS: [usize; 6] = [18, 26, 34, 42, 50, 58];

/// Frames on their way: sender, receiver, frame.
type Frames = VecDeque<(usize, VoterId, Vec<u8>)>;

/// Runs three voters and two new members under lies for `steps` steps.
///
/// Returns the number of refusals.
pub fn run(seed: u64, steps: u32, rules: Rules<ConsensusRule>) -> u64 {
    let mut random = Rng::with_seed(seed);
    let settings = Settings {
        truncate_after: 20,
        snapshot_part: 64,
        rules,
        ..Settings::default()
    };
    let ids: Vec<VoterId> = (1..=5).filter_map(VoterId::new).collect();
    let mut now = Now::default();
    let mut members: Vec<Consensus> = (0..5)
        .map(|at| match at {
            0..=2 => Consensus::bootstrap(now, settings, ids[at], &ids[..3], &[], 1),
            _ => Consensus::join(now, settings, ids[at], at as u8),
        })
        .collect();
    let mut frames = Frames::new();
    let mut refused = 0;
    for step in 0..steps {
        now.mono = Mono::from_origin(Duration::from_millis(u64::from(step) * 5));
        for (at, member) in members.iter_mut().enumerate() {
            if member.deadline().is_some_and(|due| due <= now.mono) {
                member.handle(now, Input::Tick);
                refused += drain(at, member, now, &mut frames);
            }
        }
        let at = random.usize(0..5);
        let member = &mut members[at];
        let token = u64::from(step);
        let mut change = VoterChange::default();
        let who = ids[random.usize(0..5)];
        match random.u32(0..3) {
            0 => change.remove(who),
            1 => change.add(who, Kind::Learner, random.u8(0..10)),
            _ => change.add(who, Kind::Voter, random.u8(0..10)),
        }
        let input = match random.u32(0..40) {
            0..=9 => Input::Propose {
                token,
                command: &[1; 40],
            },
            10 => Input::Confirm(token),
            11 => Input::PeerDown(who),
            12 => Input::PeerUp(who),
            13 => Input::Transfer(Some(who)),
            14 | 15 => Input::Change(&change),
            _ => Input::Confirm(token),
        };
        member.handle(now, input);
        refused += drain(at, member, now, &mut frames);
        for _ in 0..random.usize(0..16) {
            let Some((from, to, mut frame)) = frames.pop_front() else {
                break;
            };
            if random.u32(0..12) == 0 {
                lie(&mut random, &mut frame, &members);
            }
            let to = ids.iter().position(|id| *id == to).unwrap_or(0);
            let (opcode, payload) = (frame[0], &frame[9..]);
            let input = Input::Received {
                from: ids[from],
                opcode,
                payload,
            };
            members[to].handle(now, input);
            refused += drain(to, &mut members[to], now, &mut frames);
            if random.u32(0..30) == 0 {
                frames.push_back((from, ids[to], frame));
            }
        }
        frames.truncate(2000);
    }
    refused
}

/// Replaces a number or a byte of a frame.
fn lie(random: &mut Rng, frame: &mut [u8], members: &[Consensus]) {
    let member = &members[random.usize(0..members.len())];
    let is_message = frame[0] == opcode::MESSAGE;
    if is_message && random.u32(0..4) > 0 && frame.len() >= 9 + 66 {
        let field = 9 + FIELDS[random.usize(0..FIELDS.len())];
        let (last, term) = member.last();
        let known = [last, member.committed(), term, member.role().term];
        let base = match random.u32(0..8) {
            0 => random.u64(..) >> random.u32(0..64),
            1 => 0,
            _ => known[random.usize(0..known.len())],
        };
        let number = base.wrapping_add(random.u64(0..5)).wrapping_sub(2);
        frame[field..field + 8].copy_from_slice(&number.to_le_bytes());
    } else if is_message && random.u32(0..3) == 0 {
        // Another kind of message.
        frame[9] = random.u8(0..12);
    } else if frame.len() > 9 {
        let at = random.usize(9..frame.len());
        frame[at] = match random.u32(0..3) {
            0 => random.u8(..),
            1 => frame[at].wrapping_add(1),
            _ => 1,
        };
    }
}

fn drain(at: usize, member: &mut Consensus, now: Now, frames: &mut Frames) -> u64 {
    let mut refused = 0;
    let mut takes = false;
    while let Some(output) = member.poll_output() {
        match output {
            Output::Send { to, frame } => frames.push_back((at, to, frame)),
            Output::Close { .. } => refused += 1,
            Output::TakeSnapshot => takes = true,
            _ => {}
        }
    }
    if takes {
        member.handle(now, Input::Snapshot(&[7; 200]));
        refused += drain(at, member, now, frames);
    }
    refused
}
