//! K7: two nodes, of which one is enough. Each process, cable and machine fails once, and so does whatever a job waits for.

use anyhow::Context;

use super::Tools;
use super::deaths::{Case, Death, play};
use super::figures::Figures;
use super::plan::{Place, Plan};
use super::waits;

const CASES: [Case; 10] = [
    Case {
        dies: "the agent without the coordinator",
        death: Death::Agent,
        coordinates: false,
        bounds: Some((60.0, 20.0)),
    },
    Case {
        dies: "the agent with the coordinator",
        death: Death::Agent,
        coordinates: true,
        bounds: Some((80.0, 20.0)),
    },
    Case {
        dies: "the keeper without the coordinator",
        death: Death::Launcher,
        coordinates: false,
        // The others go on within a second of the death.
        bounds: Some((300.0, 700.0)),
    },
    Case {
        dies: "the agent and its keeper, without the coordinator",
        death: Death::AgentAndLauncher,
        coordinates: false,
        bounds: Some((110.0, 20.0)),
    },
    Case {
        dies: "the agent with the coordinator, and its keeper",
        death: Death::AgentAndLauncher,
        coordinates: true,
        bounds: None,
    },
    Case {
        dies: "the machine without the coordinator (cable)",
        death: Death::Machine,
        coordinates: false,
        bounds: Some((3_700.0, 20.0)),
    },
    Case {
        dies: "the machine with the coordinator (cable)",
        death: Death::Machine,
        coordinates: true,
        bounds: None,
    },
    Case {
        dies: "the agent without the coordinator is stopped (SIGSTOP)",
        death: Death::Stopped,
        coordinates: false,
        bounds: Some((15_300.0, 20.0)),
    },
    Case {
        dies: "the agent with the coordinator is stopped (SIGSTOP)",
        death: Death::Stopped,
        coordinates: true,
        bounds: None,
    },
    Case {
        dies: "the keeper with the coordinator",
        death: Death::Launcher,
        coordinates: true,
        // It hands over to the other node within 300 ms.
        bounds: Some((300.0, 700.0)),
    },
];

pub(super) fn run(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let mut overlaps = 0;
    for _ in 0..runs {
        for case in &CASES {
            let plan = Plan {
                nodes: 2,
                nnodes: "1:2",
                ..Plan::counting(Place::Open)
            };
            let played = play(tools, plan, case).context(case.dies)?;
            played.add(figures, &format!("K7, two nodes, {}", case.dies), case);
            overlaps += played.whole_overlaps;
        }
        overlaps += waits::all(tools, figures)?;
    }
    figures.exactly(
        format!("K7, {runs} times: pairs of whole rounds at one time"),
        overlaps,
        0,
    );
    Ok(())
}
