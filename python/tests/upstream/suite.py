"""Runs PyTorch's own test suite of ``torch.distributed`` with one backend.

The tests are those of the installed torch, unchanged.

``python suite.py BACKEND WORLD_SIZE FILE [TEST ...]`` writes the outcome of every test to FILE as JSON: name ->
[outcome, reason], where outcome is ``passed``, ``failed`` or ``skipped``. Without names all tests run. BACKEND is
``rdzv``, ``gloo``, or ``gloo-by-rdzv``: the name gloo, served by rdzv.
"""

import json
import os
import sys
import tempfile
import time
import unittest


def load(backend, world_size):
    os.environ["BACKEND"] = "gloo" if backend.startswith("gloo") else backend
    os.environ["WORLD_SIZE"] = str(world_size)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["TEMP_DIR"] = tempfile.mkdtemp()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    from torch.testing._internal import common_distributed

    common_distributed.TIMEOUT_DEFAULT = 60
    for feature in ("plugin", "ddp", "subgroup", "gpu"):
        common_distributed.DistTestCases.backend_feature[feature].add("rdzv")
    if backend == "gloo-by-rdzv":
        serve_gloo()
    from torch.testing._internal.distributed import distributed_test

    class TestRdzv(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # Forks, because a spawned process would import torch for each rank of each test.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    globals()["TestRdzv"] = TestRdzv
    TestRdzv.__qualname__ = "TestRdzv"
    TestRdzv.__module__ = __name__
    return TestRdzv


def serve_gloo():
    """Makes the name gloo mean rdzv, for the tests that require that name."""
    import torch.distributed as dist

    from rdzv.torch.backend import RdzvBackend, create

    class Named(RdzvBackend):
        def getBackendName(self):
            return "gloo"

    dist.Backend.register_backend(
        "gloo",
        lambda opts, backend_options: create(opts, backend_options, Named),
        extended_api=True,
        devices=["cpu"],
        _backend_type=dist.ProcessGroup.BackendType.GLOO,
    )


class Outcomes(unittest.TestResult):
    def __init__(self, file):
        super().__init__()
        self.file = file
        self.outcomes = {}

    def _add(self, test, outcome, reason=""):
        name = test.id().split(".")[-1]
        self.outcomes[name] = [outcome, reason]
        print(f"{outcome:8} {time.time() - self.began:5.1f} s  {name}", flush=True)
        with open(self.file, "w") as file:
            json.dump(self.outcomes, file, indent=1)

    def startTest(self, test):
        super().startTest(test)
        self.began = time.time()

    def addSuccess(self, test):
        self._add(test, "passed")

    def addFailure(self, test, err):
        self._add(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure

    def addSkip(self, test, reason):
        self._add(test, "skipped", reason)


def main(backend, world_size, file, *names):
    case = load(backend, world_size)
    names = names or unittest.defaultTestLoader.getTestCaseNames(case)
    suite = unittest.TestSuite(case(name) for name in names)
    suite.run(Outcomes(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
