//! Generation of a plan from a seed.

use std::time::Duration;

use fastrand::Rng;
use rustix::process::Signal;

use crate::plan::{Act, After, End, Fault, Plan, Rendezvous, What};

/// Returns the plan of a seed, always the same plan.
pub(crate) fn plan(seed: u64) -> Plan {
    // Without the factor, the plans of neighbouring seeds would begin with the same values.
    let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let rendezvous = match rng.u32(..10) {
        0..4 => Rendezvous::Standalone,
        4 => Rendezvous::Static,
        5..7 => Rendezvous::FirstAgent,
        _ => Rendezvous::OwnStore,
    };
    let count = match rendezvous {
        Rendezvous::Standalone => 1,
        _ => rng.usize(1..=3),
    };
    let nodes: Vec<u32> = (0..count).map(|_| rng.u32(1..=4)).collect();
    let max_restarts = rng.u32(0..=3);
    let mut plan = Plan {
        rendezvous,
        elastic: rendezvous.is_dynamic() && rng.bool(),
        max_restarts,
        shutdown_timeout: rng.u32(1..=2),
        tee: rng.bool(),
        stalled_console: false,
        acts: Vec::new(),
        faults: Vec::new(),
        end: Duration::from_millis(rng.u64(2500..4000)),
        nodes,
    };
    // Without the tee, a worker that writes much would block without a limit.
    plan.stalled_console = plan.tee && rng.u32(..5) == 0;
    let world: u32 = plan.nodes.iter().sum();
    for generation in 0..=max_restarts + 1 {
        acts(&mut rng, generation, world, &mut plan.acts);
    }
    for _ in 0..rng.u32(..4) {
        let fault = fault(&mut rng, &plan);
        plan.faults.push(fault);
    }
    plan
}

/// Draws the acts of all workers of one generation.
fn acts(rng: &mut Rng, generation: u32, world: u32, acts: &mut Vec<Act>) {
    let kind = rng.u32(..10);
    let failing = [rng.u32(..world), rng.u32(..world)];
    for rank in 0..world {
        let (pause, end) = match kind {
            // One or two workers fail while the others work, have finished or are stopped.
            0..6 if rank == failing[0] || (kind < 2 && rank == failing[1]) => {
                (rng.u32(..400), failure(rng))
            }
            0..6 => match rng.u32(..6) {
                0 => (rng.u32(..600), End::Success),
                1 => (rng.u32(..300), End::Stop),
                _ => (0, End::Hang),
            },
            6..9 => (rng.u32(..300), End::Success),
            _ => (0, End::Hang),
        };
        let before = before(rng);
        // A signal does not end a worker that ignores the signal.
        let ignored = before.iter().any(|step| step.starts_with("ignore:"));
        let end = match end {
            End::Signal(15) if ignored => End::Signal(9),
            other => other,
        };
        acts.push(Act {
            generation,
            rank,
            before,
            pause,
            end,
        });
    }
}

fn failure(rng: &mut Rng) -> End {
    match rng.u32(..8) {
        0..3 => End::Code(rng.i32(2..=255)),
        // ABRT, KILL, SEGV, TERM.
        3 | 4 => End::Signal(*rng.choice(&[6, 9, 11, 15]).expect("the list has members")),
        5 => End::Exception,
        6 => End::BadErrorFile,
        _ => End::Panic,
    }
}

fn before(rng: &mut Rng) -> Vec<String> {
    let mut steps: Vec<&str> = Vec::new();
    // The children of a dead worker get no message, so rdzv must find and kill each child.
    let relatives = [
        "child:hello:SOCKET:child;hang",
        "child-in-session:hello:SOCKET:child;hang",
        "orphan:hello:SOCKET:child;hang",
        "child:ignore:2,15;hello:SOCKET:child;hang",
        "orphan:ignore:2,15;hello:SOCKET:child;hang",
        "child:stop",
    ];
    for _ in 0..rng.u32(..3) {
        steps.extend(rng.choice(&relatives));
    }
    match rng.u32(..12) {
        0 => steps.push("flood:8000000"),
        1 => steps.push("flood-err:2000000"),
        2 => steps.push("eat:64000000"),
        3 => steps.push("compute:100"),
        4 => steps.push("close-stdio"),
        5 | 6 => steps.push("ignore:2,15"),
        7 => steps.push("out-part:no end of line"),
        _ => {}
    }
    steps.iter().map(|step| (*step).to_owned()).collect()
}

fn fault(rng: &mut Rng, plan: &Plan) -> Fault {
    let node = rng.usize(..plan.nodes.len());
    let pick = rng.u32(..);
    let deadly = |rng: &mut Rng| {
        *rng.choice(&[Signal::KILL, Signal::KILL, Signal::TERM, Signal::ABORT])
            .expect("the list has members")
    };
    let polite = |rng: &mut Rng| {
        *rng.choice(&[Signal::KILL, Signal::TERM, Signal::INT])
            .expect("the list has members")
    };
    let millis = rng.u32(20..700);
    let what = match rng.u32(..20) {
        0..5 => What::Worker {
            pick,
            signal: deadly(rng),
        },
        5 | 6 => What::Child {
            pick,
            signal: deadly(rng),
        },
        7 | 8 => What::Agent {
            node,
            signal: polite(rng),
        },
        9 | 10 => What::Keeper {
            node,
            signal: polite(rng),
        },
        11 if plan.nodes.len() > 1 => What::Node { node },
        12 | 13 => What::PauseWorker { pick, millis },
        14 => What::PauseAgent { node, millis },
        15 => What::PauseKeeper { node, millis },
        16 | 17 if plan.rendezvous == Rendezvous::OwnStore => What::Cut { node },
        18 if plan.rendezvous == Rendezvous::OwnStore => What::Stall { node, millis },
        _ => What::Worker {
            pick,
            signal: deadly(rng),
        },
    };
    let early = rng.u32(..5) == 0;
    Fault {
        after: if early {
            After::Launch
        } else {
            After::AllBegan
        },
        millis: if early { rng.u32(..40) } else { rng.u32(..900) },
        what,
    }
}
