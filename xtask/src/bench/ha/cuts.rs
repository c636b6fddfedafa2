//! K4: the cable of a machine is cut, among three voters, and mended when the others have gone on.

use std::time::Duration;

use super::draw::Draw;
use super::figures::Figures;
use super::job::{Job, LONGEST, Place, Plan, Workers, pass};
use super::{Tools, events, milliseconds, now};

const NODES: usize = 4;
const STEPS: usize = 3;

/// The time for the voters to be complete again.
const REPAIR: Duration = Duration::from_secs(1);

const VARIATION: u64 = 500;

/// Most milliseconds from the cut to the next round, where nobody has said how long a machine may be silent.
const FORMED: f64 = 3_800.0;

pub(super) fn run(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let plan = Plan {
        nnodes: "3:4",
        workers: Workers::Plain,
        conf: "last_call_timeout=1".to_owned(),
        ..Plan::new(Place::Voters)
    };
    let mut job = Job::start(tools, plan)?;
    let mut draw = Draw::new(4);
    let (mut formed, mut back, mut minority, mut least) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..runs {
        let round = job.wait_for_round("round of all", NODES, STEPS, least)?;
        pass(REPAIR + Duration::from_millis(draw.below(VARIATION)));
        let cut = draw.machine(NODES);
        let time = now();
        job.network.set_cable(cut, false)?;
        let mut last = 0;
        job.wait_for("round of the others", LONGEST, |job| {
            last = 0;
            for number in job.nodes().filter(|number| *number != cut) {
                match events::formed(&job.events(number)?, time) {
                    Some(event) => last = last.max(event.time),
                    None => return Ok(false),
                }
            }
            Ok(true)
        })?;
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
    let codes = job.end()?;
    let failed = codes.iter().filter(|code| !code.success()).count();
    let name = |what: &str| format!("K4, three voters, a cable cut {runs} times: {what}");
    figures.times(
        &name("the others have formed a round"),
        &formed,
        Some(FORMED),
    );
    figures.times(&name("mended to a round of all"), &back, None);
    figures.exactly(name("rounds of the node that is cut off"), minority, 0);
    figures.exactly(name("nodes that did not end with 0"), failed, 0);
    let overlaps = job.record.overlaps().len();
    figures.tell(
        name("pairs of rounds at one time (there is no fence)"),
        overlaps.to_string(),
    );
    Ok(())
}
