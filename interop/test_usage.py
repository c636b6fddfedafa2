"""Tests that rdzv has the exit codes and error texts of the real launcher.

Each row runs with both launchers, so this file contains no expected texts.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from launching import RDZV, environment, finish, worker


@dataclass
class Row:
    name: str
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)


TRUE = ["--no-python", "/bin/true"]
ROWS = [
    Row("success", TRUE),
    Row("failure", ["--no-python", "/bin/false"]),
    Row("no arguments", []),
    Row("no script", ["--nnodes", "1"]),
    Row("unknown flag", ["--bogus", *TRUE]),
    Row("ambiguous prefix", ["--nproc", "2", *TRUE]),
    Row("unambiguous prefix", ["--nproc-per", "1", "--stand", *TRUE]),
    Row("bad choice", ["--start-method", "bogus", *TRUE]),
    Row("bad choice of binding", ["--numa-binding", "bogus", *TRUE]),
    Row("bad integer", ["--max-restarts", "x", *TRUE]),
    Row("bad float", ["--monitor-interval", "x", *TRUE]),
    Row("bad integer in the environment", TRUE, {"PET_MAX_RESTARTS": "x"}),
    Row("a choice is not checked in the environment", TRUE, {"PET_START_METHOD": "bogus"}),
    Row("flag in the environment is no integer", TRUE, {"PET_STANDALONE": "abc"}),
    Row("flag in the environment is empty", TRUE, {"PET_STANDALONE": ""}),
    Row("a missing value", ["--nnodes"]),
    Row("a value for a flag that takes none", ["--standalone=1", *TRUE]),
    Row("a separate negative number", ["--max-restarts", "-1", *TRUE]),
    Row("monitor interval of nothing", ["--monitor-interval", "0", *TRUE]),
    Row("nnodes is no number", ["--nnodes", "a", *TRUE]),
    Row("nnodes is empty", ["--nnodes", "", *TRUE]),
    Row("nnodes has three parts", ["--nnodes", "1:2:3", *TRUE]),
    Row("no node", ["--nnodes", "0", *TRUE]),
    Row("fewer at most than at least", ["--nnodes", "2:1", *TRUE]),
    Row("nproc is a word", ["--nproc-per-node", "abc", *TRUE]),
    Row("nproc is no integer", ["--nproc-per-node", "1.5", *TRUE]),
    Row("nproc of a device that is not there", ["--nproc-per-node", "gpu", *TRUE]),
    Row("nproc of another device", ["--nproc-per-node", "xpu", *TRUE]),
    Row("no worker", ["--nproc-per-node", "0", *TRUE]),
    Row("less than no worker", ["--nproc-per-node", "-1", *TRUE]),
    Row("two ways to start", ["--no-python", "-m", "x"]),
    Row("unknown backend", ["--rdzv-backend", "foo", "--rdzv-endpoint", "localhost:1", *TRUE]),
    Row("configuration without a value", ["--rdzv-conf", "foo", *TRUE]),
    Row("configuration without a key", ["--rdzv-conf", "=1", *TRUE]),
    Row("configuration with an empty value", ["--rdzv-conf", "a=", *TRUE]),
    Row("configuration that ends in a comma", ["--rdzv-conf", "a=1,", *TRUE]),
    Row("a port too big", ["--rdzv-endpoint", "localhost:70000", *TRUE]),
    Row("a filter that is no list", ["--local-ranks-filter", "a", *TRUE]),
    Row("a redirect too big", ["-r", "4", *TRUE]),
    Row("a tee of nothing", ["-t", "x", *TRUE]),
    Row("a log folder that is a file", ["--log-dir", "/etc/passwd", *TRUE]),
    Row("unknown logs specs", ["--logs-specs", "bogus", *TRUE]),
    Row("negative shutdown timeout", ["--shutdown-timeout", "-1", *TRUE]),
    Row("binding without a device", ["--numa-binding", "node", *TRUE]),
    Row(
        "too few devices",
        ["--virtual-local-rank", "--nproc-per-node", "2", *TRUE],
        {"CUDA_VISIBLE_DEVICES": "4"},
    ),
    Row("unknown event log handler", ["--event-log-handler", "bogus", *TRUE]),
    Row("unknown log level", TRUE, {"LOGLEVEL": "bogus"}),
    Row("program not found", ["--no-python", "no-such-program"]),
    Row("script not found", ["no-such-script.py"]),
    Row("help", ["--help"]),
]


@pytest.fixture(scope="module")
def reference():
    rows = [{"arguments": row.arguments, "environment": row.environment} for row in ROWS]
    finished = subprocess.run(
        [sys.executable, worker("torchrun_rows.py")],
        input=json.dumps(rows),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr
    return {row.name: answer for row, answer in zip(ROWS, json.loads(finished.stdout), strict=True)}


@pytest.fixture(scope="module")
def link(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("bin") / "torchrun"
    os.symlink(RDZV, path)
    return str(path)


def last_line(stderr: str) -> str:
    return stderr.strip().splitlines()[-1] if stderr.strip() else ""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_ends_as_with_the_real_launcher(reference, link, row):
    code, stderr = reference[row.name]
    ours = finish([link, *row.arguments], env=row.environment, timeout=30)
    assert ours.code == code, f"reference: exit {code}: {last_line(stderr)}\nours: {ours.all}"
    if code == 2:
        assert last_line(ours.stderr) == last_line(stderr)
        assert ours.stderr.startswith("usage: torchrun "), ours.all
    if code == 1:
        # Only PyTorch prints a Python class. Users search for the text after it.
        _, separator, text = last_line(stderr).partition(": ")
        if separator:
            assert text in ours.stderr, f"reference: {text}\nours: {ours.all}"
