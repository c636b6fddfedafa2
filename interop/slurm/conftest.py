"""Fixture with a real Slurm cluster for each `ProctrackType` value."""

import os

import pytest

from slurm.cluster import Cluster

# `cargo xtask test` sets the values that this machine can test.
PROCTRACK = os.environ.get("RDZV_SLURM_PROCTRACK", "cgroup linuxproc").split()


@pytest.fixture(scope="session", params=PROCTRACK)
def cluster(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    made = Cluster(folder, request.param)
    yield made
    made.stop()
