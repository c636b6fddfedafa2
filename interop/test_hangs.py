"""Tests of hangs: PyTorch's timers, and gloo groups that wait for a rank."""

import json
import re
import time
from pathlib import Path

import pytest

from launching import RDZV, Running, free_port, rdzv_run, worker

WATCHDOG = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}


# SCN-A51
def test_a_worker_that_releases_its_timer_survives():
    finished = rdzv_run("--standalone", worker("timed.py"), "releases", env=WATCHDOG)
    assert finished.code == 0, finished.all
    assert finished.stdout == "working\ndone 0\n"


# SCN-A52
def test_an_expired_timer_costs_its_worker_a_restart_and_not_the_agent(tmp_path):
    pipe = tmp_path / "timers"
    finished = rdzv_run(
        *("--standalone", "--nproc-per-node", 2, "--max-restarts", 1),
        *("--event-log-handler", "console", worker("timed.py"), "hangs-once"),
        env={**WATCHDOG, "TORCHELASTIC_TIMER_FILE": str(pipe)},
    )
    assert finished.code == 0, finished.all
    assert finished.stdout.count("done 1\n") == 2, finished.all
    assert "its timer 'the slow part' expired" in finished.stderr, finished.all
    # With py-spy beside the interpreter, the report shows the stack.
    assert re.search(r"rank 0 \(pid \d+\): \S*wait \(threading\.py:", finished.stderr), finished.all
    assert not pipe.exists()
    told = [json.loads(line) for line in finished.stderr.splitlines() if line.startswith("{")]
    watchdog = [event for event in told if "watchdog_event" in event["metadata"]["metadata"]]
    names = ["watchdog started", "timer expired", "kill worker process", "watchdog stopped"]
    assert [event["name"] for event in watchdog] == names
    killed = json.loads(watchdog[2]["metadata"]["metadata"])
    assert killed["scope_id"] == "the slow part"
    assert killed["signal"] == "9"
    assert float(killed["expiration_time"]) < time.time()


def test_an_expired_timer_without_restarts_is_the_cause_in_the_report(tmp_path):
    report = tmp_path / "report.json"
    finished = rdzv_run(
        *("--standalone", "--nproc-per-node", 2, "--report", report),
        *(worker("timed.py"), "hangs"),
        env=WATCHDOG,
    )
    assert finished.code == 1, finished.all
    first = json.loads(report.read_text())["first_failure"]
    assert (first["rank"], first["exit_code"]) == (0, -9), finished.all
    assert first["cause"]["kind"] == "watchdog"
    assert "the slow part" in first["cause"]["text"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_sleep_in_front_of_a_collective_is_reported_with_where_everybody_is(tmp_path, ranks):
    limit = 4
    report = tmp_path / "report.json"
    finished = rdzv_run(
        *("--standalone", "--nproc-per-node", ranks, "--report", report),
        *("--hang-timeout", limit, "--hang-action", "fail"),
        *(worker("stuck.py"), "sleeps", 10_000),
        env={"GLOO_SOCKET_IFNAME": "lo"},
    )
    assert finished.code == 1, finished.all
    began = max(float(number) for number in re.findall(r"began ([\d.]+)", finished.stdout))
    # The launcher must end within 10 s after the limit.
    assert time.time() - began < limit + 10
    first = json.loads(report.read_text())["first_failure"]
    assert (first["rank"], first["cause"]["kind"]) == (1, "hang"), finished.all
    assert "it was in elsewhere (stuck.py:" in first["cause"]["text"]
    assert "rank 1 is not where the others are: it is in elsewhere" in finished.stderr, finished.all
    for rank in range(ranks):
        place = r"elsewhere \(stuck\.py:" if rank == 1 else r"all_reduce \(distributed_c10d\.py:"
        assert re.search(rf"  rank {rank} \(pid \d+\): {place}", finished.stderr), finished.all


def test_a_group_that_waits_for_a_silent_worker_that_computes_does_not_hang():
    finished = rdzv_run(
        *("--standalone", "--nproc-per-node", 2, "--hang-timeout", 2, "--hang-action", "fail"),
        *(worker("stuck.py"), "computes", 12),
        env={"GLOO_SOCKET_IFNAME": "lo"},
    )
    assert finished.code == 0, finished.all
    assert finished.stdout.count("all came") == 2
    assert "hangs" not in finished.stderr, finished.all


def test_a_report_alone_lets_the_workers_go_on():
    running = Running(
        [RDZV, "run", "--standalone", "--nproc-per-node", "2", "--hang-timeout", "2"]
        + [worker("stuck.py"), "sleeps", "7"],
        env={"GLOO_SOCKET_IFNAME": "lo"},
    )
    finished = running.finish()
    assert finished.code == 0, finished.all
    assert finished.stdout.count("all came") == 2
    assert finished.stderr.count("hangs: no progress for") == 1, finished.all


def test_a_node_whose_workers_wait_for_another_node_is_not_ended(tmp_path):
    # Rank 1, which sleeps for a while, is alone on the other node. This node only waits for it.
    port = free_port()

    def node(rank, *flags):
        words = [RDZV, "run", "--nnodes", "2", "--node-rank", str(rank), "--master-port", str(port)]
        words += [*flags, worker("stuck.py"), "sleeps", "6"]
        return Running(words, env={"GLOO_SOCKET_IFNAME": "lo"})

    here = node(0, "--hang-timeout", "2", "--hang-action", "fail")
    there = node(1)
    finished = here.finish()
    other = there.finish()
    assert (finished.code, other.code) == (0, 0), finished.all + other.all
    assert finished.stderr.count("hangs: no progress") == 1, finished.all
    assert "all of them may be waiting for another node" in finished.stderr, finished.all


@pytest.mark.parametrize(
    "how, calls",
    [
        ("skips", r"rank 0%s called all_reduce of Float \[1000\], rank 1%s did not call it"),
        ("differs", r"rank 0%s called all_reduce of Float \[1000\], rank 1%s called barrier"),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_flight_recorders_name_the_collective_that_ranks_do_not_share(tmp_path, nodes, how, calls):
    port = free_port()

    def node(number):
        words = [RDZV, "run", "--nnodes", nodes, "--node-rank", number, "--master-port", port]
        words += ["--nproc-per-node", 2 // nodes, "--log-dir", tmp_path / str(number)]
        words += ["--worker-server", "--hang-timeout", 5, "--hang-action", "fail"]
        words += ["--events-file", tmp_path / f"{number}.jsonl", worker("recorded_calls.py"), how]
        return Running(words, env={"GLOO_SOCKET_IFNAME": "lo"})

    running = [node(number) for number in range(nodes)]
    expected = r"collective 2 of group 0 \(default_pg, gloo\): "
    expected += calls.replace("%s", r" \(\S+\)" if nodes > 1 else "")
    hangs = 0
    for number, finished in enumerate([it.finish() for it in running]):
        assert finished.code != 0, finished.all
        events = map(json.loads, (tmp_path / f"{number}.jsonl").read_text().splitlines())
        found = [event["fields"] for event in events if event["name"] == "hang"]
        if not found:  # The other node reported its hang, and stopped this node before this one did.
            continue
        (hang,), hangs = found, hangs + 1
        assert len(re.findall(expected, finished.stderr)) == 1, finished.all
        assert re.fullmatch(expected, *hang["collectives"]), hang
        dumps = [place["flight_recorder"] for place in hang["places"] if place["node"] is None]
        assert len(dumps) == 2 // nodes, hang
        for path in dumps:
            assert f"    flight recorder: {path}\n" in finished.stderr, finished.all
            dump = json.loads(Path(path).read_text())
            assert dump["gloo"]["entries"][0]["profiling_name"] == "gloo:all_reduce"
    assert hangs > 0


def test_a_worker_that_serves_no_requests_has_no_flight_recorder_in_the_report():
    finished = rdzv_run(
        *("--standalone", "--worker-server", "--hang-timeout", 2, "--hang-action", "fail"),
        *("--nproc-per-node", 2, worker("stuck.py"), "sleeps", 10_000),
        env={"GLOO_SOCKET_IFNAME": "lo"},
    )
    assert finished.code == 1, finished.all
    assert "rank 1 is not where the others are" in finished.stderr, finished.all
    assert "flight recorder" not in finished.stderr, finished.all
