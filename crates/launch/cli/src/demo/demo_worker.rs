//! One worker of the demo: an ordinary elastic training loop.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rdzv_collective::{GroupOptions, ProcessGroup, ReduceOp, address_towards};
use rdzv_core::env::MASTER_ADDR;
use rdzv_rendezvous::url::{UrlOptions, rendezvous};

use super::checkpoint;
use super::network::{self, Training};
use super::progress::{Finished, Progress, Reporter};
use crate::exit::Exit;
use crate::terminal::complain;

const SEED: u64 = 2;

/// Number of points, for all ranks together.
const POINTS: usize = 512;

const STEPS: u32 = 120;
const CHECKPOINT_EVERY: u32 = 10;

/// Minimum duration of a step, so that a user can follow the output.
const PACE: Duration = Duration::from_millis(15);

/// Time limit that allows the other workers to start on a busy computer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Flags of one worker of the demo.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DemoWorkerArgs {
    /// Directory of the checkpoint.
    #[arg(long)]
    directory: PathBuf,

    /// Name of the socket for reports.
    #[arg(long)]
    reports: String,
}

/// Runs `rdzv demo-worker`, a hidden command that the demo starts.
pub(crate) fn work(args: &DemoWorkerArgs) -> ExitCode {
    match train(args) {
        Ok(()) => Exit::Success.into(),
        Err(error) => {
            complain(&format!("rdzv demo-worker: {error:#}"));
            Exit::Failure.into()
        }
    }
}

/// Trains from the last checkpoint, or from the beginning, to the end.
fn train(args: &DemoWorkerArgs) -> anyhow::Result<()> {
    let reporter = Reporter::connect(&args.reports).context("cannot connect to the demo")?;
    let mut group = join_group()?;
    let is_first = group.rank() == 0;
    let report = |progress| {
        if is_first {
            reporter
                .report(progress)
                .context("cannot report to the demo")
        } else {
            Ok(())
        }
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
    report(Progress::Joined {
        step: training.step,
    })?;

    let points = network::shard(SEED, POINTS, group.rank(), group.world_size());
    while training.step < STEPS {
        let started = Instant::now();
        let mut pass = training.pass(&points);
        group.all_reduce(&mut pass.sums, ReduceOp::Sum)?;
        training.advance(&pass);
        let (step, loss) = (training.step, pass.loss());
        report(Progress::Step { step, loss })?;
        if is_first && step % CHECKPOINT_EVERY == 0 {
            checkpoint::save(&args.directory, &training).context("cannot save the checkpoint")?;
        }
        // At full speed, a user could not follow the output.
        thread::sleep(PACE.saturating_sub(started.elapsed()));
    }

    let mut pass = training.pass(&points);
    group.all_reduce(&mut pass.sums, ReduceOp::Sum)?;
    report(Progress::Finished(Finished {
        step: training.step,
        loss: pass.loss(),
        accuracy: pass.accuracy(),
    }))?;
    group.barrier()?;
    Ok(())
}

/// Joins the other workers through the variables that the agent has set.
fn join_group() -> anyhow::Result<ProcessGroup> {
    let options = UrlOptions {
        timeout: TIMEOUT,
        ..UrlOptions::default()
    };
    let joined = rendezvous("env://", None, None, options)?.join()?;
    let host = env::var(MASTER_ADDR).context(MASTER_ADDR)?;
    let address =
        address_towards(&host).with_context(|| format!("cannot find a route to {host}"))?;
    let options = GroupOptions {
        timeout: TIMEOUT,
        address: Some(address),
        ..GroupOptions::default()
    };
    Ok(ProcessGroup::with_options(
        &*joined.store,
        joined.rank.0,
        joined.world_size,
        &options,
    )?)
}
