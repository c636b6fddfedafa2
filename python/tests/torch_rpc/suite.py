"""Runs PyTorch's own tests of ``torch.distributed.rpc`` with rdzv.

The tests are those of the installed torch, unchanged. rdzv is a registered backend, as PyTorch permits for other agents.

``python suite.py FILE [TEST ...]`` writes the outcome of every test to FILE as JSON: name -> [outcome, reason], where
outcome is ``passed``, ``failed`` or ``skipped``. Without names all tests run.
"""

import json
import os
import sys
import unittest

import rdzv.torch.rpc  # noqa: F401, I001, before any RRef is imported

import torch
import torch.distributed.rpc as rpc
from torch.testing._internal import common_distributed
from torch.testing._internal.distributed import rpc_utils
from torch.testing._internal.distributed.rpc.dist_autograd_test import (
    DistAutogradTest,
    TensorPipeAgentDistAutogradTest,
)
from torch.testing._internal.distributed.rpc.dist_optimizer_test import DistOptimizerTest
from torch.testing._internal.distributed.rpc.examples.parameter_server_test import ParameterServerTest
from torch.testing._internal.distributed.rpc.examples.reinforcement_learning_rpc_test import (
    ReinforcementLearningRpcTest,
)
from torch.testing._internal.distributed.rpc.rpc_agent_test_fixture import RpcAgentTestFixture
from torch.testing._internal.distributed.rpc.rpc_test import RpcTest, TensorPipeAgentRpcTest

common_distributed.TIMEOUT_DEFAULT = 40
# Three tests have separate limits of several minutes.
common_distributed.TIMEOUT_OVERRIDE.clear()


class RdzvRpcAgentTestFixture(RpcAgentTestFixture):
    @property
    def rpc_backend(self):
        return rpc.backend_registry.BackendType["RDZV"]

    @property
    def rpc_backend_options(self):
        return rpc.backend_registry.construct_rpc_backend_options(self.rpc_backend, init_method=self.init_method)

    def get_shutdown_error_regex(self):
        return ".*"

    def get_timeout_error_regex(self):
        return "RPC ran for more than"

    def _spawn_processes(self):
        # Processes are forked, because a spawned one would import torch for each rank of each test.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


SUITES = [
    RpcTest,
    TensorPipeAgentRpcTest,
    DistAutogradTest,
    TensorPipeAgentDistAutogradTest,
    DistOptimizerTest,
    ParameterServerTest,
    ReinforcementLearningRpcTest,
]
CLASSES = rpc_utils.generate_tests("Rdzv", RdzvRpcAgentTestFixture, SUITES, __name__)
for name, cls in CLASSES.items():
    # torch's class comes before the fixture, so its method for starting processes would be used.
    cls._spawn_processes = RdzvRpcAgentTestFixture._spawn_processes
globals().update(CLASSES)


class Result(unittest.TestResult):
    def __init__(self, file):
        super().__init__()
        self.file, self.outcomes = file, {}

    def note(self, test, outcome, reason=""):
        name = f"{type(test).__name__.removeprefix('Rdzv')}.{test._testMethodName}"
        self.outcomes[name] = [outcome, reason]
        print(outcome, name, flush=True)
        with open(self.file, "w") as file:
            json.dump(self.outcomes, file, indent=0)

    def addSuccess(self, test):
        self.note(test, "passed")

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)

    def addFailure(self, test, error):
        self.note(test, "failed", f"{error[0].__name__}: {error[1]}"[-2000:])

    addError = addFailure


def main(file, names):
    suite = unittest.TestSuite()
    loader = unittest.TestLoader()
    for cls in CLASSES.values():
        for test in loader.loadTestsFromTestCase(cls):
            name = f"{cls.__name__.removeprefix('Rdzv')}.{test._testMethodName}"
            if not names or name in names:
                suite.addTest(test)
    suite.run(Result(file))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1], set(sys.argv[2:])))
