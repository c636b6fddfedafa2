"""Tests of workers that recover in their processes (`rdzv run --in-process`)."""

import json
import os
import socket
import threading

import pytest
from recovery.measure import IN_PROCESS, Row, measure

import rdzv


@pytest.mark.parametrize("way", ["reconfigure", "again"])
def test_survivors_keep_their_processes_and_repeat_no_step(way):
    measure(rdzv.find_rdzv_bin(), Row("cold replacement", 3, way=way, flags=IN_PROCESS))


def test_the_spare_node_gets_the_ranks_of_the_lost_node():
    measure(rdzv.find_rdzv_bin(), Row("4 + 1 nodes", 2, "node", "4", 1, 1, flags=IN_PROCESS))


def test_an_abort_ends_the_connections_of_groups_that_are_being_made(monkeypatch, tmp_path):
    agent, member = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
    agent.bind(str(tmp_path / "control"))
    agent.listen()
    for name, value in {"RDZV_CONTROL": agent.getsockname(), "RDZV_ROUND": "0", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(rdzv.Job, "exchange", lambda job, name, value: [value])
    received = []

    def play_agent():
        connection = agent.accept()[0]
        with connection, connection.makefile() as messages:
            received.append(json.loads(next(messages))["type"])
            accepted = member.accept()[0]
            connection.sendall(b'{"type": "abort", "round": 0, "reason": "test", "dead": []}\n')
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
        ended.wait()

    @rdzv.resilient
    def work(job):
        job.regroup(make)

    player = threading.Thread(target=play_agent, daemon=True)
    player.start()
    with pytest.raises(SystemExit):
        work()
    player.join()
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
