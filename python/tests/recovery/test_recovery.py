"""Tests of workers that recover in their processes (`rdzv run --in-process`)."""

import json
import linecache
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from recovery.measure import IN_PROCESS, Row, measure

import rdzv

LIMIT = 30


@pytest.mark.parametrize("way", ["reconfigure", "again"])
def test_survivors_keep_their_processes_and_repeat_no_step(way):
    measure(rdzv.find_rdzv_bin(), Row("cold replacement", 3, way=way, flags=IN_PROCESS))


def test_the_spare_node_gets_the_ranks_of_the_lost_node():
    measure(rdzv.find_rdzv_bin(), Row("4 + 1 nodes", 2, "node", "4", 1, 1, flags=IN_PROCESS))


def control_socket(monkeypatch, tmp_path):
    agent = socket.socket(socket.AF_UNIX)
    agent.settimeout(LIMIT)
    agent.bind(str(tmp_path / "control"))
    agent.listen()
    for name, value in {"RDZV_CONTROL": agent.getsockname(), "RDZV_ROUND": "0", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(rdzv.Job, "exchange", lambda job, name, value: [value])
    return agent


@pytest.mark.parametrize("error", [ValueError, rdzv.Regroup])
def test_an_abort_at_any_line_after_the_function_is_handled(monkeypatch, tmp_path, error):
    agent = control_socket(monkeypatch, tmp_path)

    def play_agent():
        connection = agent.accept()[0]
        connection.settimeout(LIMIT)
        with connection, connection.makefile() as messages:
            kinds = [json.loads(next(messages))["type"] for _ in range(2)]
            assert kinds[1] in ("ready", "failed")
            connection.sendall(b'{"type": "stop"}\n')

    def is_interrupted(number):
        """Raises Regroup at a line that runs after the function."""
        lines = 0

        @rdzv.resilient
        def work(job):
            sys.settrace(lambda frame, event, argument: None)
            frame = sys._getframe(1)
            frame.f_trace = at_line
            raise error("own")

        def at_line(frame, event, argument):
            nonlocal lines
            if event == "line" and frame.f_locals["control"].running:
                lines += 1
                is_last = "leave(" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)
                if is_last or lines == number:
                    sys.settrace(None)
                if lines == number:
                    raise rdzv.Regroup
            return at_line

        player = threading.Thread(target=play_agent, daemon=True)
        player.start()
        try:
            with pytest.raises((SystemExit, ValueError)):
                work()
        finally:
            sys.settrace(None)
        player.join(LIMIT)
        assert not player.is_alive()
        return lines >= number

    number = 1
    while is_interrupted(number):
        number += 1
    agent.close()
    assert number > 2


def test_an_atomic_context_that_outlives_its_call_delays_no_abort(monkeypatch, tmp_path):
    agent, is_running = control_socket(monkeypatch, tmp_path), threading.Event()
    received, contexts = [], []

    def play_agent():
        connection = agent.accept()[0]
        connection.settimeout(LIMIT)
        with connection, connection.makefile() as messages:
            received.extend(json.loads(next(messages))["type"] for _ in range(2))
            connection.sendall(b'{"type": "go", "round": 1, "env": {"RDZV_ROUND": "1"}}\n')
            assert is_running.wait(LIMIT)
            connection.sendall(b'{"type": "abort", "round": 1, "reason": "test", "dead": [], "node": "node-a"}\n')
            received.append(json.loads(next(messages))["type"])
        agent.close()

    @rdzv.resilient(abort=lambda job: None)
    def work(job):
        contexts.append(job.atomic())
        if len(contexts) == 1:
            contexts[0].__enter__()
            raise ValueError("own")
        contexts[0].__exit__(None, None, None)
        is_running.set()
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            time.sleep(0.01)

    player = threading.Thread(target=play_agent, daemon=True)
    player.start()
    with pytest.raises(SystemExit):
        work()
    player.join(LIMIT)
    assert received == ["hello", "failed", "ready"]


@pytest.mark.parametrize("backend", ["gloo", "rdzv"])
def test_workers_of_another_node_learn_which_rank_exited(tmp_path, backend):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        command = [
            rdzv.find_rdzv_bin(), "run", "--in-process", "--nnodes", "2", "--nproc-per-node", "2", "--max-restarts",
            "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "named", "--ui",
            "plain", str(Path(__file__).with_name("named.py")), str(tmp_path), backend,
        ]  # fmt: skip
    environment = {**os.environ, "PYTHON_EXEC": sys.executable, "PET_LOCAL_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w") as log:
        nodes = [subprocess.Popen(command, env=environment, stderr=log) for _ in range(2)]
    try:
        end = time.monotonic() + 2 * LIMIT
        while len(list(tmp_path.glob("running-*"))) < 4:
            assert time.monotonic() < end, "the workers did not start"
            time.sleep(0.02)
        os.kill(int((tmp_path / "running-3").read_text()), signal.SIGKILL)
        assert [node.wait(2 * LIMIT) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    reasons = {rank: (tmp_path / f"reason-{rank}").read_text() for rank in range(3)}
    assert all(reason.startswith("rank 3 on ") for reason in reasons.values()), reasons
    others = [reason for reason in reasons.values() if "has lost rank 3 and joins again" in reason]
    assert len(others) == 2, reasons
    if hasattr(dist, "_reconfigure"):
        assert f"process groups of {backend} are reconfigured in place" in (tmp_path / "log").read_text()


def test_an_abort_ends_the_connections_of_groups_that_are_being_made(monkeypatch, tmp_path):
    agent, member = control_socket(monkeypatch, tmp_path), socket.create_server(("127.0.0.1", 0))
    member.settimeout(LIMIT)
    received = []

    def play_agent():
        connection = agent.accept()[0]
        connection.settimeout(LIMIT)
        with connection, connection.makefile() as messages:
            received.append(json.loads(next(messages))["type"])
            accepted = member.accept()[0]
            connection.sendall(b'{"type": "abort", "round": 0, "reason": "test", "dead": [], "node": "node-a"}\n')
            # The worker opens this connection after the abort.
            with accepted, member.accept()[0]:
                received.append(json.loads(next(messages))["type"])
        agent.close()

    def make(job):
        # Each connection waits for a member that never sends.
        ended = threading.Event()

        def connect():
            for _ in range(2):
                with socket.create_connection(member.getsockname()) as connection:
                    connection.recv(1)
            ended.set()

        threading.Thread(target=connect, daemon=True).start()
        assert ended.wait(LIMIT)

    @rdzv.resilient
    def work(job):
        job.regroup(make)

    player = threading.Thread(target=play_agent, daemon=True)
    player.start()
    with pytest.raises(SystemExit):
        work()
    player.join(LIMIT)
    member.close()
    assert received == ["hello", "ready"]
    assert os.environ["RDZV_ROUND"] == "0"


def test_without_the_launcher_the_decorator_only_calls_the_function(monkeypatch):
    monkeypatch.delenv("RDZV_CONTROL", raising=False)
    made = []

    @rdzv.resilient(max_recoveries=1)
    def work(job, value):
        job.regroup(lambda job: made.append(job.rank))
        with job.atomic():
            job.step(1)
        return job.kept, job.replaced, job.is_replacement, job.exchange("name", value)

    assert work("x") == ([], [], False, ["x"])
    assert made == [0]
    with pytest.raises(ValueError, match="own"):
        rdzv.resilient(lambda job: int("own"))()
