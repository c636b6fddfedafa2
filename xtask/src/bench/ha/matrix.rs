//! The failure matrix: each death and cut once, with one voter (two nodes) and with three (four nodes), and the table of `docs/high-availability.md`.

use std::fmt::Write as _;
use std::fs;

use anyhow::Context;

use super::Tools;
use super::deaths::{Case, Death, play};
use super::figures::Figures;
use super::plan::{Place, Plan};
use crate::command::root;

/// The lines between which the table stands in the document.
const BEGIN: &str = "<!-- made by `cargo xtask bench ha matrix` -->\n";
const END: &str = "<!-- end -->\n";

struct Row {
    dies: &'static str,
    death: Death,
    /// Whether it is the node with the coordinator.
    coordinates: bool,
    /// The bounds of the design: told and formed in milliseconds, or none where the job waits; with one voter, and with three.
    bounds: [Option<(f64, f64)>; 2],
}

const ROWS: [Row; 10] = [
    Row {
        dies: "an agent without the coordinator",
        death: Death::Agent,
        coordinates: false,
        bounds: [Some((60.0, 20.0)), Some((60.0, 20.0))],
    },
    Row {
        dies: "the agent with the coordinator",
        death: Death::Agent,
        coordinates: true,
        bounds: [Some((80.0, 20.0)), Some((150.0, 20.0))],
    },
    Row {
        dies: "a keeper without the coordinator",
        death: Death::Launcher,
        coordinates: false,
        // The others go on within a second of the death.
        bounds: [Some((300.0, 700.0)), Some((300.0, 700.0))],
    },
    Row {
        dies: "the keeper with the coordinator",
        death: Death::Launcher,
        coordinates: true,
        // It hands over within 300 ms.
        bounds: [Some((300.0, 700.0)), Some((300.0, 700.0))],
    },
    Row {
        dies: "an agent and its keeper, without the coordinator",
        death: Death::AgentAndLauncher,
        coordinates: false,
        bounds: [Some((250.0, 20.0)), Some((3_700.0, 20.0))],
    },
    Row {
        dies: "the agent with the coordinator, and its keeper",
        death: Death::AgentAndLauncher,
        coordinates: true,
        bounds: [None, Some((3_700.0, 20.0))],
    },
    Row {
        dies: "a machine without the coordinator (cable)",
        death: Death::Machine,
        coordinates: false,
        bounds: [Some((3_700.0, 20.0)), Some((3_700.0, 20.0))],
    },
    Row {
        dies: "the machine with the coordinator (cable)",
        death: Death::Machine,
        coordinates: true,
        bounds: [None, Some((3_700.0, 20.0))],
    },
    Row {
        dies: "an agent without the coordinator is stopped (SIGSTOP)",
        death: Death::Stopped,
        coordinates: false,
        bounds: [Some((15_300.0, 20.0)), Some((15_300.0, 20.0))],
    },
    Row {
        dies: "the agent with the coordinator is stopped (SIGSTOP)",
        death: Death::Stopped,
        coordinates: true,
        bounds: [None, Some((15_300.0, 20.0))],
    },
];

pub(super) fn run(tools: &Tools, figures: &mut Figures) -> anyhow::Result<()> {
    let mut table = String::from(
        "| dies | two nodes, one voter: told, formed | asked for | four nodes, three voters: told, formed | asked for |\n|---|---|---|---|---|\n",
    );
    for row in &ROWS {
        let mut cells = String::new();
        for (nodes, bounds) in [2, 4].into_iter().zip(row.bounds) {
            let (how, nnodes) = match nodes {
                2 => ("one voter", "1:2"),
                _ => ("three voters", "3:4"),
            };
            // As many agents as there are nodes for become voters by themselves.
            let plan = Plan {
                nodes,
                nnodes,
                ..Plan::counting(Place::Open)
            };
            let case = Case {
                dies: row.dies,
                death: row.death,
                coordinates: row.coordinates,
                bounds,
            };
            let played = play(tools, plan, &case);
            let played = played.with_context(|| format!("{}, {how}", row.dies))?;
            let name = format!("matrix, {how}, {}", row.dies);
            let (seen, asked) = played.add(figures, &name, &case);
            let _ = write!(cells, " {seen} | {asked} |");
        }
        let _ = writeln!(table, "| {} |{cells}", row.dies);
    }
    write_table(&table)
}

fn write_table(table: &str) -> anyhow::Result<()> {
    let path = root().join("docs/high-availability.md");
    let text = fs::read_to_string(&path)?;
    let (before, rest) = text
        .split_once(BEGIN)
        .context("the document has no place for it")?;
    let (_, after) = rest
        .split_once(END)
        .context("the place in the document has no end")?;
    fs::write(&path, format!("{before}{BEGIN}\n{table}\n{END}{after}"))?;
    Ok(())
}
