//! K4: the cable of a machine is cut, among three voters, and mended when the others have gone on.

use std::time::Duration;

use super::draw::Draw;
use super::figures::Figures;
use super::job::{Job, pass};
use super::plan::{Place, Plan};
use super::{Tools, events, milliseconds, now};

const NODES: usize = 4;
const STEPS: usize = 3;

/// The time for the voters to be complete again.
const REPAIR: Duration = Duration::from_secs(1);

const VARIATION: u64 = 500;

/// One way to run the job.
struct Way {
    name: &'static str,
    /// More of `--rdzv-conf`.
    conf: &'static str,
    /// Most milliseconds from the cut to the next round of the others.
    formed: f64,
    /// Whether a fence keeps the workers of two rounds apart.
    is_fenced: bool,
}

const WAYS: [Way; 3] = [
    Way {
        name: "as it is",
        conf: "",
        formed: 3_800.0,
        is_fenced: false,
    },
    Way {
        name: "fence=auto",
        conf: ",fence=auto",
        formed: 3_800.0,
        is_fenced: true,
    },
    Way {
        name: "fence=auto, node_timeout=0.8",
        conf: ",fence=auto,node_timeout=0.8",
        formed: 1_500.0,
        is_fenced: true,
    },
];

pub(super) fn run(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    for way in &WAYS {
        println!("    {}", way.name);
        cuts(tools, runs, way, figures)?;
    }
    Ok(())
}

fn cuts(tools: &Tools, runs: usize, way: &Way, figures: &mut Figures) -> anyhow::Result<()> {
    let mut plan = Plan::counting(Place::Voters(3));
    plan.conf.push_str(way.conf);
    let mut job = Job::start(tools, plan)?;
    let mut draw = Draw::new(4);
    let (mut formed, mut back, mut minority, mut least) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..runs {
        let round = job.wait_for_round("round of all", NODES, STEPS, least)?;
        pass(REPAIR + Duration::from_millis(draw.below(VARIATION)));
        let cut = draw.machine(NODES);
        let time = now();
        job.network.set_cable(cut, false)?;
        let last = job.wait_for_formed(&job.others(cut), time)?;
        formed.push(milliseconds(time, last));
        // The node that is cut off has the time to do something wrong.
        pass(REPAIR);
        minority += usize::from(events::formed(&job.events(cut)?, time).is_some());
        let healed = now();
        job.network.set_cable(cut, true)?;
        job.wait_for_round("round after the cut", NODES, STEPS, round + 2)?;
        back.push(milliseconds(healed, now()));
        least = round + 2;
    }
    let failed = job.end()?;
    let name = |what: &str| {
        format!(
            "K4, three voters, {}, a cable cut {runs} times: {what}",
            way.name
        )
    };
    figures.times(
        &name("the others have formed a round"),
        &formed,
        Some(way.formed),
    );
    figures.times(&name("mended to a round of all"), &back, None);
    figures.exactly(name("rounds of the node that is cut off"), minority, 0);
    figures.exactly(name("nodes that did not end with 0"), failed, 0);
    let overlaps = job.record.overlaps().len();
    match way.is_fenced {
        true => figures.exactly(name("pairs of rounds at one time"), overlaps, 0),
        false => figures.tell(name("pairs of rounds at one time"), overlaps.to_string()),
    }
    Ok(())
}
