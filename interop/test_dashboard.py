"""Tests that a dashboard for torchrun gets the same counts from rdzv.

The job has two nodes. The second node joins while the workers of the first one run, which changes the
membership. The workers fail in three attempts on both nodes, with two restarts, so that the run fails.
"""

import os
import select
from pathlib import Path

import pytest

from dashboard import Dashboard
from launching import RDZV, Running, free_port, worker

LAUNCHERS = {
    "rdzv": [RDZV, "run", "--metrics-handler=console"],
    "python": ["python", worker("torchrun_measured.py")],
}
RESTARTS = 2

# PyTorch publishes these with every poll of the workers, so their number depends on the time.
POLLED = {"workers.default.healthy", "workers.default.remaining_restarts"} | {
    f"LocalElasticAgent._monitor_workers.{point}" for point in ("success", "duration.ms")
}


def start(launcher: str, folder: Path, name: str, endpoint: str) -> Running:
    # The first node that rejoins waits for the other node, even on a busy machine.
    conf = f"last_call_timeout=5,is_host={int(name == 'a')}"
    address = {"a": "127.0.0.1", "b": "127.0.0.2"}[name]
    words = (
        f"--nnodes=1:2 --nproc-per-node=2 --max-restarts={RESTARTS} --rdzv-backend=c10d --rdzv-id=job "
        f"--rdzv-endpoint={endpoint} --rdzv-conf={conf} --local-addr={address} "
        "--event-log-handler=console"
    )
    words = [*LAUNCHERS[launcher], *words.split(), worker("fail_together.py"), folder, name]
    # With a shared store, torchrun's agents do not send the master address to a newcomer.
    return Running(words, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def await_writer(pipe: Path, agent: Running):
    """Waits until a worker of the agent has opened the pipe, or fails with output."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ready = select.poll()
        ready.register(reader, select.POLLIN | select.POLLHUP)
        if not ready.poll(240_000):
            agent.clear()
            pytest.fail(f"no worker has come: {agent.finish(10).all}")
    finally:
        os.close(reader)


@pytest.fixture(scope="module")
def dashboards(tmp_path_factory) -> dict[str, dict[str, Dashboard]]:
    """Returns the dashboards by launcher and node. Both jobs run in parallel."""
    folders = {launcher: tmp_path_factory.mktemp(launcher) for launcher in LAUNCHERS}
    agents: dict[tuple[str, str], Running] = {}
    try:
        endpoints = {launcher: f"127.0.0.1:{free_port()}" for launcher in LAUNCHERS}
        for launcher, folder in folders.items():
            pipes = [
                f"{purpose}-{attempt}"
                for attempt in range(RESTARTS + 1)
                for purpose in ("ready-a", "ready-b", "failing", "ending")
            ]
            for pipe in ("alone", *pipes):
                os.mkfifo(folder / pipe)
            agents[launcher, "a"] = start(launcher, folder, "a", endpoints[launcher])
        for launcher, folder in folders.items():
            await_writer(folder / "alone", agents[launcher, "a"])
            agents[launcher, "b"] = start(launcher, folder, "b", endpoints[launcher])
        found: dict[str, dict[str, Dashboard]] = {launcher: {} for launcher in LAUNCHERS}
        for (launcher, name), agent in agents.items():
            finished = agent.finish()
            assert finished.code == 1, f"{launcher} {name}: {finished.all}"
            found[launcher][name] = Dashboard(finished.stdout + finished.stderr)
        return found
    finally:
        for agent in agents.values():
            agent.clear()


@pytest.mark.parametrize("name", ["a", "b"])
def test_events_are_counted_alike(dashboards, name):
    ours, theirs = (dashboards[launcher][name].events for launcher in LAUNCHERS)
    assert ours == theirs
    # The first node also had a round alone.
    rounds = RESTARTS + 1 + (name == "a")
    assert ours["AGENT RENDEZVOUS"] == ours["AGENT ASSIGN_WORKER_RANKS"] == rounds
    assert ours["WORKER START"] == 2 * rounds


@pytest.mark.parametrize("name", ["a", "b"])
def test_metrics_are_counted_alike(dashboards, name):
    ours, theirs = (dashboards[launcher][name] for launcher in LAUNCHERS)
    counted = [
        {name: count for name, count in side.metrics().items() if name not in POLLED}
        for side in (ours, theirs)
    ]
    assert counted[0] == counted[1]
    assert counted[0]["workers.default.failed"] == RESTARTS + 1
    assert counted[0]["SimpleElasticAgent._restart_workers.success"] == RESTARTS + (name == "a")
    # Final counts must have the same value, and gauges the same sequence of values.
    for metric in ("run_total", "run_failed_with_retries", "run_failed_no_retries", "flakiness"):
        metric = f"workers.default.{metric}"
        assert ours.values[metric] == theirs.values[metric], metric
    levels = ours.levels("workers.default.remaining_restarts")
    assert levels == theirs.levels("workers.default.remaining_restarts") == [2, 1, 0]
    # The number of PyTorch's values depends on the run time of the workers.
    assert ours.values["workers.default.healthy"] == [1] * (RESTARTS + 1 + (name == "a"))
