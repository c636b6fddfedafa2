"""Tests of workers that recover in their processes (`rdzv run --in-process`)."""

import pytest
from recovery.measure import main

import rdzv


@pytest.mark.parametrize("way", ["reconfigure", "again"])
def test_survivors_keep_their_processes_and_repeat_no_step(way):
    main(rdzv.find_rdzv_bin(), 3, way)


def test_without_the_launcher_the_decorator_only_calls_the_function(monkeypatch):
    monkeypatch.delenv("RDZV_CONTROL", raising=False)
    made = []

    @rdzv.resilient(max_recoveries=1)
    def work(job, value):
        job.regroup(lambda job: made.append(job.rank))
        with job.atomic():
            job.step(1)
        return job.kept, job.replaced, job.is_replacement, job.exchange("name", value)

    assert work("x") == ([], [], False, ["x"])
    assert made == [0]
    with pytest.raises(ValueError, match="own"):
        rdzv.resilient(lambda job: int("own"))()
