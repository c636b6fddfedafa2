"""Run of PyTorch's own tests of the elastic API, with the classes of rdzv.

The installed torch does not contain these tests. ``python elastic.py CHECKOUT FILE`` reads them,
unedited, from a checkout of PyTorch, and writes the outcome of every test to FILE as JSON: ``file
class.test`` -> [outcome, reason]. The names that the tests import from torch are those of rdzv.
"""

import importlib.util
import json
import sys
import types
import unittest
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
import torch.distributed.elastic.agent.server.api as agent_api
import torch.distributed.elastic.rendezvous.c10d_rendezvous_backend  # noqa: F401
import torch.distributed.elastic.rendezvous.registry as registry

import rdzv
from rdzv import elastic, rendezvous
from rdzv.rendezvous import _c10d

FILES = {
    "elastic/rendezvous/c10d_rendezvous_backend_test.py": None,
    "elastic/agent/server/test/api_test.py": None,
    # The other classes test stores.
    "test_store.py": ("RendezvousTest", "RendezvousEnvTest", "RendezvousFileTest", "RendezvousTCPTest"),
}


class TCPStore(type(dist.TCPStore)):
    """Metaclass of a class with torch's constructor and stores of rdzv."""

    servers = []

    def __call__(cls, host_name, port, world_size=None, is_master=False, timeout=timedelta(seconds=300), **_):
        if is_master:
            server = rdzv.StoreServer(host_name, port)
            TCPStore.servers.append(server)
            port = server.port
        return rdzv.TCPStore(host_name, port, timeout=timeout)

    def __instancecheck__(cls, store):
        return isinstance(store, rdzv.TCPStore)


def substitute():
    """Puts the names of rdzv into torch's modules."""
    names = {
        dist: {"FileStore": rdzv.FileStore, "HashStore": rdzv.HashStore, "rendezvous": rendezvous.rendezvous},
        agent_api: {name: getattr(elastic, name) for name in ("RunResult", "SimpleElasticAgent", "Worker", "WorkerGroup", "WorkerSpec", "WorkerState")},
        registry: {"get_rendezvous_handler": rendezvous.get_rendezvous_handler},
        sys.modules["torch.distributed.elastic.rendezvous"]: {"c10d_rendezvous_backend": _c10d},
        sys.modules["torch.distributed.elastic.multiprocessing.errors"]: {"ProcessFailure": elastic.ProcessFailure},
        sys.modules["torch.distributed.elastic.rendezvous.dynamic_rendezvous"]: {"RendezvousBackend": rendezvous.RendezvousBackend},
    }
    for module in ("torch.distributed.elastic.rendezvous", "torch.distributed.elastic.rendezvous.api"):
        for name in rendezvous.__all__:
            if hasattr(sys.modules[module], name):
                names.setdefault(sys.modules[module], {})[name] = getattr(rendezvous, name)
    sys.modules["torch.distributed.elastic.rendezvous.c10d_rendezvous_backend"] = _c10d
    dist.TCPStore = TCPStore("TCPStore", (), {})
    for module, values in names.items():
        for name, value in values.items():
            setattr(module, name, value)


class Outcomes(unittest.TestResult):
    def __init__(self, name):
        super().__init__()
        self.name, self.outcomes = name, {}

    def _add(self, test, outcome, reason=""):
        key = f"{self.name} {'.'.join(test.id().split('.')[-2:])}"
        # A failed part of a test comes before the end of the test.
        self.outcomes.setdefault(key, [outcome, reason])

    def addSuccess(self, test):
        self._add(test, "passed")

    def addFailure(self, test, err):
        self._add(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._add(test, "failed", self._exc_info_to_string(err, test))

    def addSkip(self, test, reason):
        self._add(test, "skipped", reason)


def main(checkout, file):
    substitute()
    outcomes = {}
    for path, classes in FILES.items():
        source = Path(checkout) / "test" / "distributed" / path
        sys.path.insert(0, str(source.parent))
        spec = importlib.util.spec_from_file_location(source.stem, source)
        module = importlib.util.module_from_spec(spec)
        sys.modules[source.stem] = module
        assert isinstance(module, types.ModuleType)
        spec.loader.exec_module(module)
        result = Outcomes(source.name)
        for name, case in vars(module).items():
            if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == source.stem:
                if classes is None or name in classes:
                    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
        outcomes |= result.outcomes
    Path(file).write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
