"""Tests that the example gives the same result under rdzv and torchrun."""

import re

import pytest

from launching import EXAMPLES, Finished, free_port, rdzv_run, torchrun, worker

TRAIN = str(EXAMPLES / "ddp_train.py")


def final_loss(finished: Finished) -> str:
    assert finished.code == 0, finished.all
    found = re.findall(r"^final loss (\S+)$", finished.stdout, re.MULTILINE)
    assert len(found) == 1, finished.all
    return found[0]


@pytest.fixture(scope="module")
def reference_loss() -> str:
    return final_loss(torchrun("--standalone", "--nproc-per-node", 2, TRAIN))


def test_the_loss_is_the_same_to_the_last_digit(reference_loss):
    ours = rdzv_run("--standalone", "--nproc-per-node", 2, TRAIN)
    assert final_loss(ours) == reference_loss


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_worker_costs_a_restart_and_no_digit(tmp_path, reference_loss, killed):
    checkpoint = tmp_path / "model.pt"
    finished = rdzv_run(
        *("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, TRAIN),
        *("--checkpoint", checkpoint, "--kill-rank", killed, "--kill-at-step", 140),
    )
    assert "attempt 1: resumed after step 100" in finished.stdout, finished.all
    assert final_loss(finished) == reference_loss
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_without_restarts_the_killed_worker_is_the_root_cause(tmp_path):
    finished = rdzv_run(
        *("--standalone", "--nproc-per-node", 2, TRAIN),
        *("--checkpoint", tmp_path / "model.pt", "--kill-rank", 1, "--kill-at-step", 5),
    )
    assert finished.code == 1, finished.all
    root_cause = finished.stderr.partition("Root Cause (first observed failure):")[2]
    assert re.search(r"rank +: 1 \(local_rank: 1\)", root_cause), finished.all
    assert re.search(r"exitcode +: -9 \(pid: \d+\)  \(SIGKILL\)", root_cause), finished.all


# A static rendezvous has the same port in each attempt.
@pytest.mark.parametrize(("backend", "restarts"), [("standalone", 3), ("static", 10)])
def test_restarts_in_a_row_all_initialise(tmp_path, backend, restarts):
    notes = tmp_path / "notes"
    flags = {
        "standalone": ["--standalone"],
        "static": ["--rdzv-backend", "static", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"],
    }[backend]
    finished = rdzv_run(
        *(*flags, "--nproc-per-node", 2, "--max-restarts", restarts),
        *(worker("dies_every_time.py"), restarts, notes),
        timeout=800,
    )
    assert finished.code == 0, finished.all
    attempts = range(restarts + 1)
    assert notes.read_text().split("\n") == [*(f"{attempt} 2" for attempt in attempts), ""]
