"""Tests of the verdict on runs with PyTorch's workers, and with its store."""

import json

from launching import RDZV, Running, rdzv_run, worker


def test_a_worker_whose_process_ends_last_is_blamed_if_the_others_only_lost_it(tmp_path):
    report = tmp_path / "report.json"
    finished = rdzv_run(
        *("--standalone", "--nproc-per-node", 3, "--report", report, worker("fails_slowly.py")),
        env={"GLOO_SOCKET_IFNAME": "lo"},
    )
    assert finished.code == 1, finished.all
    found = json.loads(report.read_text())
    first = found["first_failure"]
    assert (first["rank"], first["cause"]["kind"]) == (1, "exception"), finished.all
    assert first["cause"]["text"] == "ValueError: loss is NaN"
    assert "fails_slowly.py" in first["traceback"]
    assert [failure["secondary"] for failure in found["failures"]] == [False, True, True]


def test_nodes_at_any_store_name_the_first_failure_of_the_job(any_server, tmp_path):
    def node(number):
        words = [RDZV, "run", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "job"]
        words += ["--rdzv-endpoint", f"{any_server.host}:{any_server.port}"]
        words += ["--rdzv-conf", "is_host=0", "--exit-code", "worker"]
        words += ["--report", str(tmp_path / f"{number}.json"), "--no-python", "sh", "-c"]
        words += ['test "$RANK" = 1 && { echo "ValueError: no data" >&2; exit 9; }; sleep 60']
        return Running(words)

    nodes = [node(0), node(1)]
    ended = [running.finish() for running in nodes]
    assert [finished.code for finished in ended] == [9, 9], "".join(done.all for done in ended)
    reports = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2)]
    first = reports[0]["first_failure"]
    assert first == reports[1]["first_failure"]
    assert (first["rank"], first["exit_code"]) == (1, 9)
    assert first["stderr_tail"] == ["ValueError: no data"]
