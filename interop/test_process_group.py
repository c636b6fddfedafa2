"""Tests of `init_process_group` with rdzv's stores, over each kind of URL."""

import sys
from pathlib import Path

import pytest

import launching
from launching import free_port, rdzv_run, worker


def expect_results(folder: Path, size: int) -> None:
    found = {path.name: path.read_text() for path in folder.iterdir()}
    total = str(float(size * (size + 1) // 2))
    assert found == {f"attempt 0 rank {rank}": total for rank in range(size)}


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_env_url_under_our_launcher(tmp_path, workers):
    finished = rdzv_run(
        "--standalone", "--nproc-per-node", workers, worker("collective.py"), "env://", tmp_path
    )
    assert finished.code == 0, finished.all
    expect_results(tmp_path, workers)


def test_env_url_under_the_static_backend(tmp_path):
    port = free_port()
    finished = rdzv_run(
        *("--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", port),
        *(worker("collective.py"), "env://", tmp_path),
    )
    assert finished.code == 0, finished.all
    expect_results(tmp_path, 2)


def test_tcp_url_of_the_agents_own_store(tmp_path):
    url = "tcp://{MASTER_ADDR}:{MASTER_PORT}"
    finished = rdzv_run(
        "--standalone", "--nproc-per-node", 2, worker("collective.py"), url, tmp_path
    )
    assert finished.code == 0, finished.all
    expect_results(tmp_path, 2)


def test_tcp_url_hosted_by_the_worker_with_rank_0(tmp_path):
    url = f"tcp://127.0.0.1:{free_port()}"
    finished = rdzv_run(
        "--standalone", "--nproc-per-node", 2, worker("collective.py"), url, tmp_path
    )
    assert finished.code == 0, finished.all
    expect_results(tmp_path, 2)


def test_env_url_with_the_store_left_to_the_worker(tmp_path):
    finished = rdzv_run(
        *("--standalone", "--nproc-per-node", 2, worker("collective.py"), "env://", tmp_path),
        env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )
    assert finished.code == 0, finished.all
    expect_results(tmp_path, 2)


def test_file_url_under_our_launcher(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    meeting = tmp_path / "meeting"
    finished = rdzv_run(
        *("--standalone", "--nproc-per-node", 2),
        *(worker("collective.py"), f"file://{meeting}", results),
    )
    assert finished.code == 0, finished.all
    expect_results(results, 2)


def test_workers_of_no_launcher_meet_at_our_server(tmp_path, rdzv_server):
    """Starts a server once and the workers without a launcher, like a job script."""
    meeting = {
        "MASTER_ADDR": rdzv_server.host,
        "MASTER_PORT": str(rdzv_server.port),
        "WORLD_SIZE": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    started = [
        launching.Running(
            [sys.executable, worker("collective.py"), "env://", str(tmp_path)],
            env={**meeting, "RANK": str(rank)},
        )
        for rank in range(3)
    ]
    for running in started:
        finished = running.finish()
        assert finished.code == 0, finished.all
    expect_results(tmp_path, 3)
