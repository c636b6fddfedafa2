"""Tests of `rdzv.worker` inside and outside of workers, and of `rdzv.testing`."""

import json
import os
import time

import pytest

import rdzv
from rdzv.testing import run_workers


def test_a_worker_knows_its_ranks():
    def ranks():
        worker = rdzv.worker
        return (
            worker.rank(),
            worker.local_rank(),
            worker.world_size(),
            worker.local_world_size(),
            worker.group_rank(),
            worker.role_rank(),
            worker.restart_count(),
            worker.is_worker(),
        )

    assert run_workers(ranks, 2) == [(0, 0, 2, 2, 0, 0, 0, True), (1, 1, 2, 2, 0, 1, 0, True)]
    assert rdzv.launch("rdzv.worker:run_id", nprocs=1, rdzv_id="job-7")[0] == "job-7"


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("rank", "RANK"),
        ("local_rank", "LOCAL_RANK"),
        ("world_size", "WORLD_SIZE"),
        ("local_world_size", "LOCAL_WORLD_SIZE"),
        ("group_rank", "GROUP_RANK"),
        ("role_rank", "ROLE_RANK"),
        ("restart_count", "TORCHELASTIC_RESTART_COUNT"),
        ("run_id", "TORCHELASTIC_RUN_ID"),
    ],
)
def test_outside_of_a_worker_the_missing_variable_is_named(monkeypatch, name, variable):
    monkeypatch.delenv(variable, raising=False)
    assert not rdzv.worker.is_worker()
    with pytest.raises(RuntimeError, match=variable):
        getattr(rdzv.worker, name)()


def test_workers_share_a_store():
    def work():
        store = rdzv.worker.store()
        assert store is rdzv.worker.store()
        store.set(f"from {rdzv.worker.rank()}", str(rdzv.worker.rank() + 10))
        return [store.get(f"from {rank}") for rank in range(rdzv.worker.world_size())]

    assert run_workers(work, 2) == [[b"10", b"11"]] * 2


@pytest.mark.accident
def test_a_forked_child_of_a_worker_gets_a_store_of_its_own():
    def work():
        rdzv.worker.store().set("from the parent", "1")
        child = os.fork()
        if child == 0:
            rdzv.worker.store().set("from the child", "2")
            os._exit(0)
        os.waitpid(child, 0)
        return rdzv.worker.store().get("from the child")

    assert run_workers(work, 1) == [b"2"]


def test_a_worker_without_heartbeats_fails_and_one_with_them_does_not():
    def work(beats):
        import time

        for step in range(8):
            if beats or step == 0:
                rdzv.worker.heartbeat(step)
            time.sleep(0.5)
        return "done"

    flags = {"nprocs": 1, "start": "pickle", "heartbeat_timeout": 2, "hang_action": "fail"}
    assert rdzv.launch(work, (True,), **flags)[0] == "done"
    with pytest.raises(rdzv.WorkerGroupFailed, match="heartbeat"):
        rdzv.launch(work, (False,), **flags)
    rdzv.worker.heartbeat()


def test_a_step_is_a_line_with_its_number_and_time(tmp_path, monkeypatch):
    monkeypatch.delenv("RDZV_HEARTBEAT", raising=False)
    rdzv.worker.step(1)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        monkeypatch.setenv("RDZV_HEARTBEAT", str(path))
        monkeypatch.setattr(rdzv.worker, "_pipe", None)
        before = time.monotonic()
        rdzv.worker.step(12)
        rdzv.worker.heartbeat()
        lines = pipe.read(100).splitlines()
    word, number, sent = lines[0].split()
    assert (word, number, lines[1]) == (b"step", b"12", b"step")
    assert before - 1e-5 < float(sent) <= time.monotonic()


def test_an_error_that_is_reported_is_the_cause(tmp_path, monkeypatch):
    def work():
        try:
            raise KeyError("the true reason")
        except KeyError as error:
            rdzv.worker.report_error(error)
        os._exit(3)

    with pytest.raises(rdzv.WorkerGroupFailed) as caught:
        rdzv.launch(work, nprocs=1, start="pickle")
    assert "the true reason" in caught.value.first.cause and caught.value.first.exitcode == 3
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    rdzv.worker.report_error(ValueError("x"))
    assert json.loads(path.read_text())["message"]["message"] == "ValueError: x"


def test_the_exception_of_the_first_rank_that_fails_is_raised():
    def work():
        if rdzv.worker.rank() == 1:
            raise LookupError("not here")
        rdzv.worker.store().get("never")

    with pytest.raises(LookupError, match="not here") as caught:
        run_workers(work, 2)
    notes = "\n".join(caught.value.__notes__)
    assert "rank 1 of 2" in notes and "in work" in notes


def test_bad_numbers_are_refused():
    for number, error in [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)]:
        with pytest.raises(error):
            run_workers(print, number)
    with pytest.raises(rdzv.LaunchTimeout):
        run_workers(lambda: __import__("time").sleep(60), 1, timeout=0.5)


def test_the_fixture_is_there(rdzv_workers):
    assert rdzv_workers(rdzv.worker.rank, 3) == [0, 1, 2]
