"""Comparison of `rdzv.elastic` with `torch.distributed.elastic`.

The signatures are the same, and so are the results of one program.
"""

import inspect
import json
import subprocess
import sys

import pytest

import rdzv.elastic
import rdzv.rendezvous

agent = pytest.importorskip("torch.distributed.elastic.agent.server.api", reason="this Python has no torch")
from torch.distributed.elastic import multiprocessing, rendezvous  # noqa: E402
from torch.distributed.elastic.agent.server import local_elastic_agent  # noqa: E402
from torch.distributed.elastic.multiprocessing import errors  # noqa: E402
from torch.distributed.launcher import api as launcher  # noqa: E402

PAIRS = [
    (agent.WorkerSpec, rdzv.elastic.WorkerSpec),
    (agent.Worker, rdzv.elastic.Worker),
    (agent.WorkerGroup, rdzv.elastic.WorkerGroup),
    (agent.RunResult, rdzv.elastic.RunResult),
    (agent.ElasticAgent, rdzv.elastic.ElasticAgent),
    (agent.SimpleElasticAgent, rdzv.elastic.SimpleElasticAgent),
    (local_elastic_agent.LocalElasticAgent, rdzv.elastic.LocalElasticAgent),
    (launcher.LaunchConfig, rdzv.elastic.LaunchConfig),
    (launcher.elastic_launch, rdzv.elastic.elastic_launch),
    (launcher.launch_agent, rdzv.elastic.launch_agent),
    (errors.ProcessFailure, rdzv.elastic.ProcessFailure),
    (errors.ChildFailedError, rdzv.elastic.ChildFailedError),
    (errors.record, rdzv.elastic.record),
    (multiprocessing.LogsSpecs, rdzv.elastic.LogsSpecs),
    (multiprocessing.DefaultLogsSpecs, rdzv.elastic.DefaultLogsSpecs),
    (rendezvous.RendezvousParameters, rdzv.rendezvous.RendezvousParameters),
    (rendezvous.RendezvousHandler, rdzv.rendezvous.RendezvousHandler),
    (rendezvous.RendezvousInfo, rdzv.rendezvous.RendezvousInfo),
    (rendezvous.RendezvousStoreInfo, rdzv.rendezvous.RendezvousStoreInfo),
    (rendezvous.RendezvousHandlerRegistry, rdzv.rendezvous.RendezvousHandlerRegistry),
]

# Methods that only torch has, with the reason.
ABSENT = {
    "LogsSpecs.reify": "the native launcher lays out the folder",
    "DefaultLogsSpecs.reify": "the native launcher lays out the folder",
    "RendezvousStoreInfo.build": "the native agents exchange the address",
    "SimpleElasticAgent.get_event_failed": "events are the native agent's",
    "SimpleElasticAgent.get_event_succeeded": "events are the native agent's",
    "SimpleElasticAgent.record_duration": "metrics are the native agent's",
}
DEFAULTS = {"LaunchConfig.rdzv_backend": "c10d"}


def parameters(of, name):
    found = []
    for parameter in inspect.signature(of).parameters.values():
        default = parameter.default
        if default is not inspect.Parameter.empty:
            # A field that is made for each object.
            default = None if repr(default) == "<factory>" else default
            default = DEFAULTS.get(f"{name}.{parameter.name}", default)
            default = int(default) if isinstance(default, int) else default
        found.append((parameter.name, parameter.kind, default))
    return found


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=lambda pair: getattr(pair, "__name__", ""))
def test_signatures_are_the_same(theirs, ours):
    name = theirs.__name__
    assert parameters(ours, name) == parameters(theirs, name)
    if not inspect.isclass(theirs):
        return
    for method, function in vars(theirs).items():
        public = not method.startswith("_") or method in getattr(theirs, "__abstractmethods__", ())
        if not public or isinstance(function, property) or not callable(getattr(theirs, method)):
            continue
        if f"{name}.{method}" in ABSENT:
            assert not hasattr(ours, method), f"{name}.{method} is there: strike it from the list"
            continue
        assert parameters(getattr(ours, method), name) == parameters(getattr(theirs, method), name), method
    assert getattr(ours, "__abstractmethods__", set()) == {
        method for method in getattr(theirs, "__abstractmethods__", set()) if f"{name}.{method}" not in ABSENT
    } - ({"root_log_dir"} if "Logs" in name else set())


def test_enumerations_are_the_same():
    assert [(state.name, state.value) for state in rdzv.elastic.WorkerState] == [
        (state.name, state.value) for state in agent.WorkerState
    ]
    for state in agent.WorkerState:
        ours = rdzv.elastic.WorkerState(state.value)
        assert rdzv.elastic.WorkerState.is_running(ours) == agent.WorkerState.is_running(state)
    assert {std.name: int(std) for std in rdzv.elastic.Std} == {std.name: int(std) for std in multiprocessing.Std}
    for text in ("0", "3", "0:3,1:0,2:1"):
        assert rdzv.elastic.Std.from_str(text) == multiprocessing.Std.from_str(text)


@pytest.mark.parametrize("value", [True, False, 0, 1, "yes", "F", "t", "0", 2, "maybe", None])
def test_options_are_read_alike(value):
    def read(module):
        parameters = module.RendezvousParameters("c10d", "", "job", 1, 1, key=value)
        try:
            return parameters.get_as_bool("key", None)
        except ValueError:
            return "refused"

    assert read(rdzv.rendezvous) == read(rendezvous)


PROGRAM = """
import json, os, sys, tempfile, time
if sys.argv[1] == "torch":
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    settings = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
else:
    from rdzv.elastic import ChildFailedError, LaunchConfig, elastic_launch, record
    settings = {}

def ranks(number):
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME",
             "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"]
    return number, {name: os.environ[name] for name in names}

def restarted(folder):
    path = os.path.join(folder, os.environ["RANK"])
    if not os.path.exists(path):
        open(path, "w").close()
        # The other worker must have failed in this attempt too. Otherwise it fails for the first
        # time in the next one.
        while len(os.listdir(folder)) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.005)
        raise ValueError("the first time")
    return os.environ["TORCHELASTIC_RESTART_COUNT"]

def fail(number):
    if os.environ["RANK"] == "1":
        raise ValueError(f"broken {number}")

def attempt(function, *args, **more):
    config = LaunchConfig(1, 1, 2, run_id="job", **{"max_restarts": 0, **settings, **more})
    try:
        return {str(rank): value for rank, value in elastic_launch(config, function)(*args).items()}
    except ChildFailedError as failed:
        rank, first = failed.get_first_failure()
        message = first.message["message"] if isinstance(first.message, dict) else first.message
        return {"name": failed.name, "rank": rank, "local_rank": first.local_rank, "exitcode": first.exitcode,
                "message": message if first.exitcode != 9 else "", "signal": first.signal_name()}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps([
            attempt(ranks, 5, role="trainer"), attempt(restarted, folder, max_restarts=1), attempt(fail, 3),
            attempt("true"), attempt("sh", "-c", "exit 9"), attempt("sh", "-c", "kill -9 $$$$"),
        ]))
"""


def test_one_program_has_the_same_results(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    results = {}
    for library in ("torch", "rdzv"):
        ended = subprocess.run([sys.executable, program, library], capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr[-4000:]
        results[library] = json.loads(ended.stdout)
    theirs, ours = results["torch"], results["rdzv"]
    for one, other in zip(theirs, ours):
        if one.get("signal") == "SIGKILL":
            # The text has the process id.
            assert one.pop("message").split(" received")[0] == other.pop("message").split(" received")[0]
        if one.get("exitcode") in (9, -9):
            # Both workers end in the same way, and either may be the first.
            for key in ("rank", "local_rank"):
                one.pop(key), other.pop(key)
        assert other == one
