"""Tests of the messages about waits of `rdzv run` at PyTorch's store.

Agents share the state in that store, and it sends no notifications.
"""

import signal
from pathlib import Path

from launching import RDZV, Running


def node(server, nodes, script):
    words = [RDZV, "run", "--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-id", "job"]
    words += ["--rdzv-endpoint", f"{server.host}:{server.port}", "--rdzv-conf", "is_host=0"]
    words += ["--local-addr", "127.0.0.1", "--no-python", "sh", "-c", script]
    return Running(words, env={"RDZV_COMPAT_OUTPUT": ""})


def says(running, text):
    """Waits for a line that contains `text`. Fails if the program exits first."""
    seen = []
    for line in running.process.stderr:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"{text!r} was not said: {seen}")


def stopped(running):
    running.process.send_signal(signal.SIGTERM)
    running.finish(30)


def test_a_wait_for_nodes_says_which_have_come(torch_server):
    waiting = node(torch_server, "2", "exit 9")
    says(waiting, "waiting for nodes: 1 of 2 (127.0.0.1); ")
    stopped(waiting)


def test_a_node_in_reserve_says_so(torch_server, tmp_path: Path):
    go = tmp_path / "go"
    first = node(torch_server, "1:1", f"echo on; until [ -e {go} ]; do sleep 0.01; done")
    assert first.process.stdout.readline() == "on\n"
    spare = node(torch_server, "1:1", "exit 9")
    says(spare, "in reserve: the job has its 1 node (127.0.0.1); ")
    stopped(spare)
    go.touch()
    assert first.finish(60).code == 0
