"""Tests of the reported culprit and cause of faults in collectives of PyTorch.

Faults that need no PyTorch are in `crates/launch/cli/tests/faults`.
"""

import json

from launching import rdzv_run, worker


def first_failure(tmp_path, way, *flags):
    report = tmp_path / "report.json"
    finished = rdzv_run(
        *("--standalone", "--nproc-per-node", 2, "--report", report, *flags),
        *(worker("faults.py"), way),
    )
    return finished, json.loads(report.read_text())["first_failure"]


def test_who_is_killed_is_blamed_and_not_who_noticed(tmp_path):
    finished, first = first_failure(tmp_path, "killed")
    assert finished.code == 1, finished.all
    assert (first["rank"], first["exit_code"], first["cause"]["kind"]) == (1, -9, "signal"), first


def test_who_raised_is_blamed_and_not_who_lost_the_connection(tmp_path):
    finished, first = first_failure(tmp_path, "raises")
    assert finished.code == 1, finished.all
    assert first["rank"] == 1, first
    assert first["cause"]["text"] == "ValueError: loss is NaN at step 20", first


def test_a_group_that_does_not_come_about_is_reported_in_the_words_of_pytorch(tmp_path):
    finished, first = first_failure(tmp_path, "absent")
    assert finished.code == 1, finished.all
    assert (first["rank"], first["cause"]["kind"]) == (0, "exception"), first
    assert "DistStoreError" in first["cause"]["text"] or "imed out" in first["cause"]["text"], first


def test_a_rank_that_misses_a_monitored_barrier_is_in_the_cause(tmp_path):
    finished, first = first_failure(tmp_path, "late")
    assert finished.code == 1, finished.all
    assert first["rank"] == 0, first
    assert "Rank 1 failed to pass monitoredBarrier" in first["cause"]["text"], first


def test_one_slow_rank_is_not_blamed(tmp_path):
    finished, first = first_failure(
        tmp_path, "slow", "--hang-timeout", 1.5, "--hang-action", "fail"
    )
    assert finished.code == 0, finished.all
    assert first is None
