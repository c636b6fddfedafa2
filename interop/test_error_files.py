"""Tests of reports about workers that fail under PyTorch's recorder."""

import json
import re

import pytest

from launching import rdzv_run, worker


def test_a_recorded_exception_is_in_the_report(tmp_path):
    finished = rdzv_run(
        *("--standalone", "--nproc-per-node", 2, "--log-dir", tmp_path),
        *(worker("recorded.py"), "raise"),
    )
    assert finished.code == 1, finished.all
    root_cause = finished.stderr.partition("Root Cause (first observed failure):")[2]
    error_file = re.search(r"error_file: (\S+/attempt_0/0/error\.json)", root_cause)
    assert error_file, finished.all
    assert "\n  traceback : Traceback (most recent call last):\n    File " in root_cause
    assert "ValueError: boom 0" in root_cause
    recorded = json.loads(open(error_file.group(1)).read())
    assert recorded["message"]["message"] == "ValueError: boom 0"


def test_the_launchers_own_error_file_is_the_workers_with_its_code(tmp_path):
    own = tmp_path / "launcher.json"
    finished = rdzv_run(
        *("--standalone", "--log-dir", tmp_path / "logs", worker("recorded.py"), "raise"),
        env={"TORCHELASTIC_ERROR_FILE": str(own)},
    )
    assert finished.code == 1, finished.all
    (worker_file,) = tmp_path.glob("logs/*/attempt_0/0/error.json")
    expected = json.loads(worker_file.read_text())
    expected["message"]["errorCode"] = 1
    assert json.loads(own.read_text()) == expected


@pytest.mark.parametrize(("way", "code"), [("exit", "9"), ("SIGKILL", "-9"), ("SIGSEGV", "-11")])
def test_what_leaves_no_record_is_reported_by_its_code(tmp_path, way, code):
    finished = rdzv_run("--standalone", "--log-dir", tmp_path, worker("recorded.py"), way)
    assert finished.code == 1, finished.all
    assert re.search(rf"exitcode +: {code} \(pid: \d+\)", finished.stderr), finished.all
    assert "error_file: <N/A>" in finished.stderr


def test_an_early_failure_stops_the_sibling_that_waits(tmp_path):
    finished = rdzv_run("--standalone", "--nproc-per-node", 3, worker("recorded.py"), "exit")
    assert finished.code == 1, finished.all
    assert finished.stderr.count("exitcode  :") == 3
