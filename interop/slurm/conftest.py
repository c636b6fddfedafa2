"""A real Slurm for the tests of this folder: one cluster for each way in which Slurm follows processes."""

import os

import pytest

from slurm.cluster import Cluster

# `cargo xtask test` names one in each of its jobs.
PROCTRACK = os.environ.get("RDZV_SLURM_PROCTRACK", "cgroup linuxproc").split()


@pytest.fixture(scope="session", params=PROCTRACK)
def cluster(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    made = Cluster(folder, request.param)
    yield made
    made.stop()
