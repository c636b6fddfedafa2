"""Tests of CUDA tensors without a GPU: see `suite.py` and `standin.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    compiler = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", folder / "libcuda.so", HERE / "fake_cuda.c"]
    subprocess.run(compiler, check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    command = [sys.executable, HERE / "suite.py", folder / "outcomes.json"]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads((folder / "outcomes.json").read_text())


def test_device_maps_and_memory_with_the_stand_in_device(outcomes):
    assert {name: text for name, text in outcomes.items() if text} == {}
    assert len(outcomes) >= 25
