//! What a job waits for, with the sentence that the screens show, and how it goes on afterwards.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::deaths::{Outcome, SAID, said};
use super::figures::Figures;
use super::job::{Job, LONGEST, pass};
use super::plan::{Place, Plan};
use super::{Tools, now};
use crate::bench::launcher::signal;

const STEPS: usize = 3;

/// The voters are complete, and processes have lived longer than those after whose death there is a pause.
const SETTLED: Duration = Duration::from_millis(1_300);

/// The machines whose screens are to show these words.
type Shown = (Vec<usize>, &'static str);

/// A wait.
struct Wait {
    name: &'static str,
    nodes: usize,
    /// Those of a round; the others are in reserve.
    size: usize,
    nnodes: &'static str,
    place: Place,
    /// Has it begin.
    begin: fn(&mut Job<'_>) -> anyhow::Result<Shown>,
    /// Has it end.
    end: fn(&mut Job<'_>) -> anyhow::Result<()>,
    /// Whether the round holds over it.
    holds: bool,
    /// Whether the others, which can be reached, go on without those that wait.
    others_go_on: bool,
    /// It waits from the last death on, not from the first.
    from_last_death: bool,
}

const WAITED: &str = "is waited for";
const RECOVERING: &str = "recovering round";
const NODES: &str = "waiting for nodes";
const VOTERS: &str = "waiting until";

const ELSEWHERE: &str = "whether that one has ended is unknown";

const SILENT: &str = "nothing is heard of round";

/// Milliseconds until machines that are cut off are lost.
const LOST: f64 = 3_000.0;

const WAITS: [Wait; 9] = [
    Wait {
        name: "W1, `rdzv store` and its keeper are killed",
        nodes: 2,
        size: 2,
        nnodes: "1:2",
        place: Place::Store,
        begin: |job| {
            kill_store(job)?;
            Ok((vec![1, 2], WAITED))
        },
        end: |job| job.start_store(&[]),
        holds: true,
        others_go_on: false,
        from_last_death: false,
    },
    Wait {
        name: "W2, `rdzv store` is killed while half of the nodes are cut off",
        nodes: 2,
        size: 2,
        nnodes: "1:2",
        place: Place::Store,
        begin: |job| {
            job.network.set_cable(2, false)?;
            let service = job.service().context("no process of the store serves")?;
            signal(service, Signal::SIGKILL)?;
            Ok((vec![3], RECOVERING))
        },
        end: |job| job.network.set_cable(2, true),
        holds: true,
        others_go_on: false,
        from_last_death: false,
    },
    Wait {
        name: "W2, without a note: its keeper is killed too, and it is started again",
        nodes: 2,
        size: 2,
        nnodes: "1:2",
        place: Place::Store,
        begin: |job| {
            job.network.set_cable(2, false)?;
            kill_store(job)?;
            job.start_store(&[])?;
            Ok((vec![3], RECOVERING))
        },
        end: |job| job.network.set_cable(2, true),
        holds: true,
        others_go_on: false,
        from_last_death: false,
    },
    Wait {
        name: "W3, `rdzv store` and its keeper are killed, and the next one has another address than its service",
        nodes: 3,
        size: 2,
        nnodes: "1:2",
        place: Place::Service,
        begin: |job| {
            kill_store(job)?;
            job.start_store(&[])?;
            Ok((vec![job.store_machine()], ELSEWHERE))
        },
        end: |job| {
            kill_store(job)?;
            job.start_store(&["--recover"])
        },
        holds: true,
        others_go_on: false,
        from_last_death: false,
    },
    Wait {
        name: "W4, both nodes of a round are cut off, and there is a third one",
        nodes: 3,
        size: 2,
        nnodes: "1:2",
        place: Place::Store,
        begin: |job| {
            let round = job.record.round().context("there is no round")?;
            let machines = job.record.of_round(round);
            let machines: Vec<_> = machines.iter().map(|worker| worker.machine).collect();
            for machine in machines {
                job.network.set_cable(machine, false)?;
            }
            Ok((vec![job.store_machine()], SILENT))
        },
        end: |job| (1..=3).try_for_each(|number| job.network.set_cable(number, true)),
        holds: false,
        others_go_on: false,
        from_last_death: false,
    },
    Wait {
        name: "W5, two of three voters are killed with their keepers",
        nodes: 3,
        size: 3,
        nnodes: "1:3",
        place: Place::Voters(3),
        begin: |job| {
            kill_node(job, 1)?;
            kill_node(job, 2)?;
            Ok((vec![3], WAITED))
        },
        end: |job| {
            job.replace_node(1)?;
            job.replace_node(2)
        },
        holds: false,
        others_go_on: false,
        from_last_death: false,
    },
    Wait {
        name: "W6, one of three voters is cut off",
        nodes: 3,
        size: 3,
        nnodes: "2:3",
        place: Place::Voters(3),
        begin: |job| {
            let coordinator = job.coordinator().context("nobody coordinates")?;
            // The screen is the same wherever the coordinator is.
            job.network.set_cable(coordinator, false)?;
            Ok((vec![coordinator], WAITED))
        },
        end: |job| (1..=3).try_for_each(|number| job.network.set_cable(number, true)),
        holds: false,
        others_go_on: true,
        from_last_death: false,
    },
    Wait {
        name: "W7, of two nodes the one with the coordinator ends, and the agent of the other one dies before it takes over",
        nodes: 2,
        size: 2,
        nnodes: "1:2",
        place: Place::Open,
        begin: |job| {
            let other = job.agent(2).context("an agent is missing")?;
            signal(other, Signal::SIGSTOP)?;
            signal(job.launcher(1)?, Signal::SIGTERM)?;
            job.wait_for("end of the first node", LONGEST, |job| {
                Ok(job.ended(1)?.is_some())
            })?;
            signal(other, Signal::SIGKILL)?;
            Ok((vec![2], VOTERS))
        },
        end: |job| job.start_node(1),
        holds: false,
        others_go_on: false,
        from_last_death: true,
    },
    Wait {
        name: "W8, one of two nodes that are both needed has left",
        nodes: 2,
        size: 2,
        nnodes: "2",
        place: Place::First,
        begin: |job| {
            kill_node(job, 2)?;
            Ok((vec![1], NODES))
        },
        end: |job| job.replace_node(2),
        holds: false,
        others_go_on: false,
        from_last_death: false,
    },
];

/// Plays all of them. Returns the pairs of whole rounds at one time.
pub(super) fn all(tools: &Tools, figures: &mut Figures) -> anyhow::Result<usize> {
    let mut overlaps = 0;
    for wait in &WAITS {
        overlaps += play(tools, wait, figures).context(wait.name)?;
    }
    Ok(overlaps)
}

fn play(tools: &Tools, wait: &Wait, figures: &mut Figures) -> anyhow::Result<usize> {
    let plan = Plan {
        nodes: wait.nodes,
        nnodes: wait.nnodes,
        ..Plan::counting(wait.place)
    };
    let mut job = Job::start(tools, plan)?;
    let round = job.wait_for_steps(wait.size, STEPS)?;
    pass(SETTLED);
    let before = job.consoles();
    let first = now();
    let (machines, words) = (wait.begin)(&mut job)?;
    let time = match wait.from_last_death {
        true => now(),
        false => first,
    };
    let outcome = said(&mut job, &machines, words, time, &before)?;
    pass(SETTLED);
    job.record.read()?;
    let rounds = job.record.workers().filter(|worker| {
        // Of those that wait alone.
        !wait.others_go_on || machines.contains(&worker.machine)
    });
    let during = rounds.map(|worker| worker.round).max();
    (wait.end)(&mut job)?;
    let healed = now();
    job.wait_for("steps of all nodes that take part", LONGEST, |job| {
        pass(Duration::from_millis(20));
        job.record.read()?;
        let stepping = job.record.stepping(healed);
        let newest = job.record.round();
        let members = stepping.values().filter(|its| Some(**its) == newest);
        Ok(members.count() == wait.size && (wait.holds || newest > Some(round)))
    })?;
    if let Outcome::Waits { said, sentence } = &outcome {
        let name = format!("K7, {}: \"{sentence}\"", wait.name);
        let lost = match words == SILENT {
            true => LOST,
            false => 0.0,
        };
        figures.within(name, *said, lost + SAID);
    }
    let new = |what: &str| format!("K7, {}: new rounds {what}", wait.name);
    let formed = usize::from(during > Some(round));
    figures.exactly(new("meanwhile"), formed, 0);
    if wait.holds {
        let after = usize::from(job.record.round() > Some(round));
        figures.exactly(new("afterwards"), after, 0);
    }
    let failed = job.end()?;
    figures.exactly(
        format!("K7, {}: nodes that did not end with 0", wait.name),
        failed,
        0,
    );
    Ok(job.record.whole_overlaps().len())
}

fn kill_store(job: &mut Job<'_>) -> anyhow::Result<()> {
    let service = job.service().context("no process of the store serves")?;
    let mut keeper = job.store.take().context("no store runs")?;
    signal(keeper.id(), Signal::SIGKILL)?;
    // It may have ended already, because its keeper has.
    let _ = signal(service, Signal::SIGKILL);
    keeper.wait()?;
    // It is no child of ours, and its port is free when it has ended.
    job.wait_for("end of the store", LONGEST, |_| {
        Ok(fs::read_link(format!("/proc/{service}/exe")).is_err())
    })
}

fn kill_node(job: &mut Job<'_>, number: usize) -> anyhow::Result<()> {
    let agent = job.agent(number).context("an agent is missing")?;
    signal(job.launcher(number)?, Signal::SIGKILL)?;
    // It may have ended already, because its keeper has.
    let _ = signal(agent, Signal::SIGKILL);
    Ok(())
}
