"""Tests of jobs with agents of rdzv and torchrun, with a real process group.

The tests exclude cases that fail even with torchrun's agents alone. These agents keep the first master
address that they receive, so the node with rank 0 has to stay. They send this address to newcomers only
if they are new themselves.
"""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from conftest import connect
from elastic import Job
from launching import RDZV, Running, worker

# Ten runs of each case have succeeded. One is enough to detect a broken change.
RUNS = range(int(os.environ.get("MIXED_FLEET_RUNS", "1")))
MAKES = ("python", "rdzv")
COLLECTIVE = worker("collective.py")


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("first", MAKES)
@pytest.mark.parametrize("host", MAKES)
def test_two_agents_of_different_make_form_one_group(tmp_path, host, first, run):
    """Tests each choice of the store host and of the node with rank 0."""
    guest = MAKES[1 - MAKES.index(host)]
    addresses = {first: "127.0.0.1", MAKES[1 - MAKES.index(first)]: "127.0.0.2"}
    with Job(tmp_path, "2") as job:
        job.start(host, "host", addresses[host], "is_host=1", "--nproc-per-node", 2)
        job.start(guest, "guest", addresses[guest], "is_host=0")
        job.await_world(3, "host", "guest")
        job.finish()


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("host", MAKES)
def test_agents_of_either_make_come_and_go(tmp_path, host, run):
    nodes = "2:4" if host == "python" else "2:3"
    with Job(tmp_path, nodes) as job:
        job.start("rdzv", "leader", "127.0.0.1", f"is_host={int(host == 'rdzv')}")
        staying = ["leader"]
        if host == "python":
            job.start("python", "host", "127.0.0.9", "is_host=1")
            staying.append("host")
            # The first address that the Python agents receive must belong to the agent that stays.
            job.await_world(2, *staying)
        few, many = len(staying) + 1, len(staying) + 2
        job.start("python", "python-1", "127.0.0.2", "is_host=0")
        job.await_world(few, *staying, "python-1")
        job.start("rdzv", "rdzv-1", "127.0.0.3", "is_host=0")
        job.await_world(many, *staying, "python-1", "rdzv-1")

        job.leave("python-1")
        job.await_world(few, *staying, "rdzv-1")
        job.start("python", "python-2", "127.0.0.4", "is_host=0")
        job.await_world(many, *staying, "rdzv-1", "python-2")

        job.leave("rdzv-1")
        job.await_world(few, *staying, "python-2")
        job.start("rdzv", "rdzv-2", "127.0.0.5", "is_host=0")
        job.await_world(many, *staying, "python-2", "rdzv-2")
        job.finish()


def test_ours_go_on_without_an_agent_of_torchrun_and_after_their_coordinator(tmp_path):
    """rdzv detects a killed agent of torchrun by its missing heartbeats.

    An agent of torchrun ends when the coordinator is killed."""
    ours = ["host", "rdzv-1", "rdzv-2"]
    with Job(tmp_path, "3:4") as job:
        for name, address in zip(ours, ("127.0.0.1", "127.0.0.2", "127.0.0.3"), strict=True):
            job.start("rdzv", name, address, f"is_host={int(name == 'host')}")
        job.start("python", "python-1", "127.0.0.4", "is_host=0")
        job.await_world(4, *ours, "python-1")
        job.kill("python-1")
        job.await_world(3, *ours)
        job.start("python", "python-2", "127.0.0.4", "is_host=0")
        job.await_world(4, *ours, "python-2")
        host = job.agents["host"]
        # A killed agent does not delete the folder of its run.
        left = list(Path(host.temporary.name).iterdir())
        os.kill(agent_of(host.process.pid), signal.SIGKILL)
        assert job.agents.pop("python-2").finish().code != 0
        job.await_world(3, *ours)
        for folder in left:
            shutil.rmtree(folder)
        job.finish()


def agent_of(keeper: int) -> int:
    """Returns the agent of a node, which is below its keeper and its guard."""
    for _ in range(2):
        keeper = int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0])
    return keeper


# SCN-A40
def test_a_store_holds_exactly_the_keys_of_the_reference(tmp_path, any_server):
    endpoint = f"{any_server.host}:{any_server.port}"
    client = connect(any_server)
    agents = [
        Running(
            [
                *(RDZV, "run", "--nnodes", 2, "--nproc-per-node", size, "--role", role),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "job"),
                *("--local-addr", address, COLLECTIVE, "env://", tmp_path),
            ]
        )
        for role, size, address in (("actor", 1, "127.0.0.1"), ("learner", 2, "127.0.0.2"))
    ]
    for agent in agents:
        finished = agent.finish()
        assert finished.code == 0, finished.all
    assert sorted(os.listdir(tmp_path)) == [f"attempt 0 rank {rank}" for rank in range(3)]

    state, prefix = "torch.rendezvous.job", "torch.rendezvous.job.0/"
    agent = prefix + "torchelastic/"
    values = {
        agent + "role_info/0": {"role": "actor", "rank": 0, "local_world_size": 1},
        agent + "role_info/1": {"role": "learner", "rank": 1, "local_world_size": 2},
        agent + "assigned_ranks/0": [0, 3, 0, 1],
        agent + "assigned_ranks/1": [1, 3, 0, 2],
    }
    # If the coordinator can restart, agents of rdzv report their success to it, and not through
    # keys, which would be lost.
    barrier = set()
    if any_server.make != "rdzv":
        barrier = {agent + "agent/terminal_state/last_member"}
        values[agent + "agent/terminal_state/num_members"] = 2
    for key, value in values.items():
        assert json.loads(client.get(key)) == value, key
    assert client.get(prefix + "MASTER_ADDR") == b"127.0.0.1"
    assert client.get(prefix + "MASTER_PORT").isdigit()
    assert client.check([state, *barrier])
    if any_server.make != "pytorch-legacy":  # the older server cannot list its keys
        known = {
            *values,
            *(prefix + name for name in ("MASTER_ADDR", "MASTER_PORT")),
            *barrier,
            state,
        }
        assert {key.lstrip("/") for key in client.list_keys()} == known
