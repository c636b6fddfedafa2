"""Tests of a DDP job that Slurm preempts and restarts."""

from pathlib import Path

import pytest

from slurm.conftest import PROCTRACK
from slurm.test_slurm import ONE_EACH, documented

TRAIN = {"train.py": (Path(__file__).parent / "train_ddp.py").read_text()}
TIMEOUT = 120


# Training takes long, and one run is enough.
@pytest.mark.parametrize("cluster", PROCTRACK[:1], indirect=True, scope="session")
def test_a_preempted_ddp_job_ends_with_the_loss_of_an_unbroken_one(cluster):
    script = documented("slurm.md", "--preempt-signal USR1 --preempt-shutdown-timeout 110 train.py")
    flags = (*ONE_EACH, "-c40", "--time=10")
    unbroken = cluster.batch(script, *flags, files=TRAIN)
    unbroken.completed(TIMEOUT)
    losses = [line["loss"] for line in unbroken.said("end")]
    assert len(losses) == 4 and len(set(losses)) == 1, losses

    job = cluster.batch(script, *flags, files=TRAIN)
    job.await_said("tenth", 4, TIMEOUT)
    high = cluster.batch("srun -c40 true\n", "-p", "high", "-N4", "-c40", *ONE_EACH)
    saved = job.await_said("saved", 4)
    steps = {line["step"] for line in saved}
    assert len(steps) == 1 and 10 <= min(steps) < 60, saved
    high.completed()
    assert job.await_state("PENDING")["Restarts"] == "1"
    job.start_soon()
    job.completed(TIMEOUT)
    again = [line for line in job.said("start") if line["restart"] == "1"]
    assert {line["step"] for line in again} == steps and len(again) == 4
    assert [line["loss"] for line in job.said("end")] == pytest.approx(losses, rel=1e-12)
    print(f"saved at step {steps}, losses {losses[0]!r} and {job.said('end')[0]['loss']!r}")
