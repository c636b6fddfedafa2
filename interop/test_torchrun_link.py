"""Tests that workers of rdzv under the name `torchrun` see the same.

Each scenario runs the same flags and script with the real launcher and with a link to rdzv. The
tests compare the dumps of the workers. `plain` removes the parts that differ in each run, and
`better` names the intended differences.
"""

import json
import os
import re
import socket
from dataclasses import dataclass, field

import pytest

from launching import RDZV, TORCHRUN, finish, free_port, worker

DUMP = worker("dump.py")


@dataclass
class Scenario:
    name: str
    flags: list[str]
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    # Intended differences, named by the end of their paths in a dump.
    better: tuple[str, ...] = ()


SCENARIOS = [
    Scenario("one worker", [], ["a", "--x=1"]),
    Scenario("standalone", ["--standalone", "--nproc-per-node", "2"]),
    Scenario("threads chosen", ["--nproc-per-node=2"], [], {"OMP_NUM_THREADS": "7"}),
    Scenario("static by port", ["--master-port", "{port}", "--node-rank", "0"]),
    Scenario("static by endpoint", ["--rdzv-endpoint", "127.0.0.1:{port}", "--rdzv-id", "job"]),
    Scenario("static by name", ["--rdzv-endpoint", "localhost:{port}", "--nproc-per-node", "2"]),
    Scenario(
        "divided devices",
        ["--virtual-local-rank", "--nproc-per-node", "2"],
        [],
        {"CUDA_VISIBLE_DEVICES": "4, 5"},
    ),
    Scenario(
        "divided devices of the other make",
        ["--virtual-local-rank", "--nproc-per-node", "2"],
        [],
        {"HIP_VISIBLE_DEVICES": "6,7", "CUDA_VISIBLE_DEVICES": "0"},
    ),
    Scenario("devices left alone", [], [], {"CUDA_VISIBLE_DEVICES": "4, 5"}),
    Scenario(
        "macros",
        ["--nproc-per-node", "2"],
        ["${local_rank}", "$local_rank", "$$x", "${foo}", "a${local_rank}b", "$", "${"],
    ),
    Scenario("environment defaults", [], [], {"PET_NPROC_PER_NODE": "2", "PET_ROLE": "trainer"}),
    Scenario("flag over environment", ["--nproc-per-node", "1"], [], {"PET_NPROC_PER_NODE": "2"}),
    Scenario("launcher flags of the script", [], ["--nproc-per-node", "3"]),
    Scenario("separators of the script", [], ["--", "--x", "--"]),
    Scenario("underscores", ["--nproc_per_node", "2", "--max_restarts=3", "--role", "trn"]),
    Scenario("restarts and signals", ["--max-restarts", "2", "--signals-to-handle", "SIGTERM"]),
    Scenario("no log folder", ["--log-dir", "/dev/null"]),
    Scenario("log folder", ["--log-dir", "{logs}", "-r", "3"]),
    Scenario(
        "a name for a run on one node, which the real launcher drops",
        ["--rdzv-id", "job"],
        better=("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"),
    ),
    Scenario("store left to the workers", [], [], {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
    Scenario("error handling inherited", [], [], {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}),
    Scenario("address", ["--local-addr", "127.0.0.2"]),
    Scenario("run by path", ["--run-path"], ["a", "b"], better=("leads its session",)),
]


@pytest.fixture
def link(tmp_path) -> str:
    path = tmp_path / "torchrun"
    os.symlink(RDZV, path)
    return str(path)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_workers_see_the_same(tmp_path, link, scenario):
    theirs = dumps(TORCHRUN, tmp_path / "theirs", scenario)
    ours = dumps(link, tmp_path / "ours", scenario)
    assert theirs, "the real launcher started no worker"
    found = differences(ours, theirs)
    assert [line for line in found if not line.split(": ")[0].endswith(scenario.better)] == []


def differences(ours, theirs, path: str = "") -> list[str]:
    """Returns the differences between two dumps, one per line."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = sorted(ours.keys() | theirs.keys())
        inner = (differences(ours.get(n), theirs.get(n), f"{path}/{n}") for n in names)
        return [line for lines in inner for line in lines]
    return [] if ours == theirs else [f"{path}: {ours!r}, not {theirs!r}"]


def dumps(launcher: str, folder, scenario: Scenario) -> dict:
    folder.mkdir()
    values = {"port": free_port(), "logs": folder / "logs"}
    values["is local"] = not any("{port}" in flag for flag in scenario.flags)
    flags = [flag.format(**values) for flag in scenario.flags]
    finished = finish(
        [launcher, *flags, DUMP, *scenario.arguments],
        env={**scenario.environment, "DUMP": str(folder)},
        cwd=folder,
    )
    assert finished.code == 0, finished.all
    found = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    run_ids = {dump["environment"]["TORCHELASTIC_RUN_ID"] for dump in found.values()}
    ports = {dump["environment"]["MASTER_PORT"] for dump in found.values()}
    assert len(run_ids) == len(ports) == 1, "one run id and one master port for all"
    return {name: plain(dump, folder, values) for name, dump in sorted(found.items())}


UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def plain(dump: dict, folder, values) -> dict:
    """Returns a dump without the parts that differ between any two runs."""
    variables = dump["environment"]
    if variables["MASTER_PORT"] == str(values["port"]):
        variables["MASTER_PORT"] = "<the port given>"
    elif variables["MASTER_PORT"].isdigit():
        variables["MASTER_PORT"] = "<a free port>"
    if UUID.fullmatch(variables["TORCHELASTIC_RUN_ID"]):
        variables["TORCHELASTIC_RUN_ID"] = "<a uuid>"
    # The real launcher resolves the name of its host even if no other host has to reach it.
    if values["is local"] and variables["MASTER_ADDR"] in ("127.0.0.1", socket.getfqdn()):
        variables["MASTER_ADDR"] = "<this node>"
    error_file = variables["TORCHELASTIC_ERROR_FILE"]
    error_file = UUID.sub("<a uuid>", error_file).replace(str(folder), "<folder>")
    error_file = re.sub(r"^\S*/interop-\w{8}/", "<temporary>/", error_file)
    error_file = re.sub(r"_[A-Za-z0-9_]{8}/", "_<random>/", error_file)
    variables["TORCHELASTIC_ERROR_FILE"] = error_file
    dump["directory"] = os.path.relpath(dump["directory"], folder)
    return dump
