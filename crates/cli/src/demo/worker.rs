//! One worker of the demo: an ordinary elastic training loop, as a user would write it.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rdzv_collective::{GroupOptions, ProcessGroup, Reduce, address_towards};
use rdzv_core::env::MASTER_ADDR;
use rdzv_rendezvous::url::{UrlOptions, rendezvous};

use super::args::DemoWorkerArgs;
use super::network::{self, Training};
use super::progress::{Progress, Reporter};
use super::{CHECKPOINT_EVERY, PACE, POINTS, SEED, STEPS, checkpoint};

/// Longer than the other workers may take to start on a busy computer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Trains from the last checkpoint, or from the beginning, to the end.
pub(super) fn train(args: &DemoWorkerArgs) -> anyhow::Result<()> {
    let reporter = Reporter::connect(&args.reports).context("reach the demo")?;
    let mut group = meet()?;
    let is_first = group.rank() == 0;
    let report = |progress| match is_first {
        true => reporter.report(progress).context("report to the demo"),
        false => Ok(()),
    };

    let mut training = Training::new(SEED);
    if is_first && let Some(saved) = checkpoint::load(&args.directory)? {
        training = saved;
    }
    let mut step = [i64::from(training.step)];
    group.broadcast(&mut step, 0)?;
    group.broadcast(&mut training.parameters, 0)?;
    group.broadcast(&mut training.velocity, 0)?;
    training.step = u32::try_from(step[0])?;
    report(Progress::Met {
        step: training.step,
    })?;

    let points = network::shard(SEED, POINTS, group.rank(), group.world_size());
    while training.step < STEPS {
        let started = Instant::now();
        let mut pass = training.pass(&points);
        group.all_reduce(&mut pass.sums, Reduce::Sum)?;
        training.advance(&pass);
        let (step, loss) = (training.step, pass.loss());
        report(Progress::Step { step, loss })?;
        if is_first && step % CHECKPOINT_EVERY == 0 {
            checkpoint::save(&args.directory, &training).context("save the checkpoint")?;
        }
        // Nobody could follow it at full speed.
        thread::sleep(PACE.saturating_sub(started.elapsed()));
    }

    let mut pass = training.pass(&points);
    group.all_reduce(&mut pass.sums, Reduce::Sum)?;
    report(Progress::Finished {
        step: training.step,
        loss: pass.loss(),
        accuracy: pass.accuracy(),
    })?;
    group.barrier()?;
    Ok(())
}

/// Finds the other workers by what the agent has put into the environment.
fn meet() -> anyhow::Result<ProcessGroup> {
    let options = UrlOptions {
        timeout: TIMEOUT,
        ..UrlOptions::default()
    };
    let met = rendezvous("env://", None, None, options)?.join()?;
    let host = env::var(MASTER_ADDR).context(MASTER_ADDR)?;
    let address = address_towards(&host).with_context(|| format!("find a way to {host}"))?;
    let options = GroupOptions {
        timeout: TIMEOUT,
        address: Some(address),
        ..GroupOptions::default()
    };
    Ok(ProcessGroup::with_options(
        &*met.store,
        met.rank.0,
        met.world_size,
        &options,
    )?)
}
