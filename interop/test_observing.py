"""Tests of events, compared with torchrun's, and of PyTorch's worker server."""

import http.client
import json
import os
import select
import socket

import pytest

from launching import RDZV, TORCHRUN, Running, finish, free_port, worker

SERVED = worker("served.py")


def events(launcher: list[str]) -> list[dict]:
    words = "--nproc-per-node=2 --max-restarts=1 --event-log-handler=console --no-python".split()
    finished = finish([*launcher, *words, "sh", "-c", "exit 3"])
    assert finished.code == 1, finished.all
    lines = [line for line in finished.stderr.splitlines() if line.startswith('{"name"')]
    assert lines, finished.all
    return [json.loads(line) for line in lines]


def shape(event: dict) -> tuple:
    """Returns the name, source and structure of an event, without other values."""
    details = json.loads(event["metadata"]["metadata"])
    arrays = sorted(key for key, value in details.items() if isinstance(value, list))
    keys = [key for key in event["metadata"] if key != "outcome"]
    return event["name"], event["source"], list(event), keys, list(details), arrays


def test_events_come_in_the_references_order_with_its_keys():
    ours, theirs = events([RDZV, "run"]), events([TORCHRUN])
    assert [shape(event) for event in ours] == [shape(event) for event in theirs]
    for key in ("state", "agent_restarts", "global_rank", "role", "rdzv_backend"):
        found = [[event["metadata"][key] for event in side] for side in (ours, theirs)]
        assert found[0] == found[1], key
    times = [event["timestamp"] for event in ours]
    assert times == sorted(times) and times[0] > 1_700_000_000_000
    # The event of torchrun does not report that the workers have failed.
    assert ours[-1]["metadata"]["outcome"] == "FAILED"
    assert "outcome" not in theirs[-1]["metadata"]


def life(launcher: list[str]) -> list[str]:
    """Returns the first words of the INFO lines about a group that restarts once."""
    script = 'test "$TORCHELASTIC_RESTART_COUNT" = 1'
    words = "--nproc-per-node=1 --max-restarts=1 --role=trn --no-python".split()
    finished = finish([*launcher, *words, "sh", "-c", script], env={"LOGLEVEL": "INFO"})
    assert finished.code == 0, finished.all
    said = [line.split("[trn] ")[1] for line in finished.stderr.splitlines() if "[trn] " in line]
    return [" ".join(line.split(maxsplit=6)[:6]) for line in said]


def test_the_life_of_a_group_has_the_references_lines():
    ours, theirs = life([RDZV, "run"]), life([TORCHRUN])
    # rdzv has no other agent to wait for, and prints no line about a wait.
    assert ours.pop() == "All workers successfully finished."
    assert theirs.pop().startswith("worker group successfully finished.")
    assert "Worker group FAILED. 1/1 attempts left;" in ours
    # rdzv reports the stop of the workers at its beginning, and their restart at the end.
    assert sorted(ours) == sorted(theirs)
    assert [line for line in ours if "top" not in line] == [
        line for line in theirs if "top" not in line
    ]


class OverSocket(http.client.HTTPConnection):
    def __init__(self, path: str):
        super().__init__("worker", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def answer(connection, method: str, path: str) -> tuple[int, str | None, bytes]:
    connection.request(method, path, headers={"Content-Length": "0", "Connection": "close"})
    response = connection.getresponse()
    found = response.status, response.headers.get("content-type"), response.read()
    connection.close()
    return found


@pytest.fixture
def served(tmp_path):
    """Runs two workers that serve. Returns the status port and their sockets."""
    ready, ends = tmp_path / "ready", [tmp_path / f"end{local_rank}" for local_rank in (0, 1)]
    for pipe in (ready, *ends):
        os.mkfifo(pipe)
    port = free_port()
    words = ["run", "--nproc-per-node=2", "--worker-server", f"--status-addr={port}"]
    running = Running([RDZV, *words, SERVED, str(ready), str(tmp_path / "end")])
    try:
        # Each worker writes a byte when it serves. Open for reading and writing, so that this call
        # does not wait for the workers.
        with open(os.open(ready, os.O_RDWR), "rb", buffering=0) as told:
            for _ in range(2):
                assert select.select([told], [], [], 90)[0], running.words
                told.read(1)
        pids = [entry["pid"] for entry in status(port)["workers"]]
        sockets = [variable(pid, "TORCH_WORKER_SERVER_SOCKET") for pid in pids]
        yield port, sockets
        for end in ends:
            end.write_text("x")
        finished = running.finish()
        assert finished.code == 0, finished.all
        assert not any(os.path.exists(path) for path in sockets)
    finally:
        running.clear()


def status(port: int) -> dict:
    code, _, text = answer(http.client.HTTPConnection("127.0.0.1", port), "GET", "/status")
    assert code == 200
    return json.loads(text)


def variable(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/environ") as file:
        return dict(line.partition("=")[::2] for line in file.read().split("\0"))[name]


# SCN-A53
def test_a_worker_answers_through_us_as_it_does_itself(served):
    port, sockets = served
    assert len(set(sockets)) == 2 and all(len(path) < 108 for path in sockets)
    for local_rank, path in enumerate(sockets):
        for method, target in [
            ("GET", "/"),
            ("GET", "/handler/"),
            ("POST", "/handler/ping"),
            ("POST", "/handler/wait_counter_values"),
            ("POST", "/handler/fr_trace_json?includeCollectives=true"),
            ("POST", "/handler/no_such"),
            ("GET", "/handler/ping"),
            ("GET", "/other"),
        ]:
            ours = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            through = answer(ours, method, f"/workers/{local_rank}{target}")
            assert through == answer(OverSocket(path), method, target), (method, target)
    ours = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    code, kind, text = answer(ours, "POST", "/workers/0/handler/ping")
    assert (code, kind, text) == (200, "text/plain", b"pong")
