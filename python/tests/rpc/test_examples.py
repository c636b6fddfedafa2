"""Examples of calls, run by workers of the launcher."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize(
    "example, workers, said",
    [
        ("rpc_parameter_server.py", 2, "server: 100 steps of 1 trainers"),
        ("rpc_parameter_server.py", 4, "server: 100 steps of 3 trainers"),
        ("rpc_pipeline.py", 2, "8 micro-batches through 1 stages"),
        ("rpc_pipeline.py", 4, "8 micro-batches through 3 stages"),
    ],
)
def test_an_example_of_calls_runs(example, workers, said):
    command = [sys.executable, "-m", "rdzv", "run", "--standalone", "--nproc-per-node", str(workers), str(EXAMPLES / example)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert said in finished.stdout.splitlines(), finished.stdout


@pytest.mark.parametrize("example", ["rpc_parameter_server.py", "rpc_pipeline.py"])
def test_an_example_of_calls_says_that_one_worker_is_too_few(example):
    command = [sys.executable, "-m", "rdzv", "run", "--standalone", "--nproc-per-node", "1", str(EXAMPLES / example)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 1
    assert "start more workers" in finished.stderr
