"""Tests of the results, exceptions and refusals of `rdzv.launch`."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch.functions import fail_on, fail_once, rank_times
from launch.processes import descendants
from ports import free_port

import rdzv
from rdzv.elastic import RunResult, WorkerState


def test_values_come_back_by_rank():
    result = rdzv.launch(rank_times, (3,), nprocs=3)
    assert dict(result) == {0: 0, 1: 3, 2: 6}
    assert result[2] == 6 and len(result) == 3 and result.return_values == dict(result)
    assert isinstance(result, RunResult) and result.state is WorkerState.SUCCEEDED and not result.is_failed()
    assert (result.failures, result.restarts, result.report["outcome"]) == ({}, 0, "succeeded")
    assert result.report["title"] == "rank_times"


def test_a_function_is_named_by_a_text_and_arguments_may_be_large():
    value = b"abc" * (4 << 20)
    assert rdzv.launch("launch.functions:big", (value,), nprocs=1)[0] == (len(value), b"abc")


def test_the_values_of_a_command_are_none():
    result = rdzv.launch([sys.executable, "-c", "import os; assert os.environ['RANK'] == '0'"], nprocs=1)
    assert dict(result) == {0: None} and result.state is WorkerState.SUCCEEDED
    with pytest.raises(rdzv.WorkerGroupFailed) as failed:
        rdzv.launch(["sh", "-c", "exit $0"], ("7",), nprocs=1)
    assert failed.value.first.exitcode == 7


def test_a_failure_has_rank_cause_and_traceback():
    begin = time.monotonic()
    with pytest.raises(rdzv.WorkerGroupFailed) as caught:
        rdzv.launch(fail_on, (1,), nprocs=3)
    assert time.monotonic() - begin < 30
    failed = caught.value
    assert failed.first.rank == 1 and failed.first.cause == "ValueError: boom" and failed.first.exitcode == 1
    assert "in fail_on" in failed.first.traceback and "_entry" not in failed.first.traceback
    assert isinstance(failed.__cause__, ValueError) and str(failed.__cause__) == "boom"
    for part in ("fail_on failed", "rank 1", "ValueError: boom", "in fail_on"):
        assert part in str(failed)
    assert failed.get_first_failure() == (1, failed.first) and set(failed.failures) >= {1}
    assert failed.result.is_failed() and failed.result.report["finality"]["kind"] == "max_restarts_exceeded"
    again = pickle.loads(pickle.dumps(failed))
    assert str(again) == str(failed) and again.first.rank == 1
    assert not descendants()


def test_an_exception_that_cannot_come_back_is_described():
    with pytest.raises(rdzv.WorkerGroupFailed, match="OfTheWorker: one and two") as caught:
        rdzv.launch("launch.functions:raise_what_cannot_come_back", nprocs=1)
    assert caught.value.__cause__ is None


def test_a_value_that_cannot_be_pickled_names_rank_and_type():
    with pytest.raises(rdzv.WorkerGroupFailed) as caught:
        rdzv.launch("launch.functions:not_to_be_pickled", nprocs=2)
    assert "rank 1 returned a value of type builtins.function" in caught.value.first.cause


def test_values_are_those_of_the_last_attempt():
    result = rdzv.launch(fail_once, nprocs=2, max_restarts=1)
    assert dict(result) == {0: 1, 1: 1} and result.restarts == 1


def test_a_worker_may_end_without_a_value_or_with_a_code_or_by_a_signal():
    assert dict(rdzv.launch("launch.functions:exit_with", (0,), nprocs=2)) == {}
    for function, argument, code, cause in [
        ("launch.functions:exit_with", 5, 5, "exit code 5"),
        ("launch.functions:kill_oneself", 9, -9, "SIGKILL"),
        ("launch.functions:kill_oneself", 11, -11, "SIGSEGV"),
    ]:
        with pytest.raises(rdzv.WorkerGroupFailed, match=cause) as caught:
            rdzv.launch(function, (argument,), nprocs=1)
        assert caught.value.first.exitcode == code


def test_the_timeout_stops_the_run():
    begin = time.monotonic()
    with pytest.raises(rdzv.LaunchTimeout, match="within 0.5 s") as caught:
        rdzv.launch("time:sleep", (60,), nprocs=2, timeout=0.5)
    assert isinstance(caught.value, TimeoutError) and time.monotonic() - begin < 20
    assert not descendants()


def test_what_cannot_be_imported_is_refused_before_any_process(monkeypatch):
    monkeypatch.setattr(os, "posix_spawn", None)

    def local():
        return 1

    for function, text in [
        (local, "local to another function"),
        (lambda: 1, "a lambda"),
        ("launch.functions:none", "module launch.functions has no none"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("launch", "module:function"),
        (rdzv.TCPStore.get if hasattr(rdzv, "TCPStore") else [].append, "start='pickle'"),
    ]:
        with pytest.raises(ValueError, match=text):
            rdzv.launch(function, nprocs=1)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"nproc": 2}, TypeError, "no flag 'nproc': did you mean 'nprocs'"),
        ({"rdzv_endpoit": "a"}, TypeError, "did you mean 'rdzv_endpoint'"),
        ({"report": "a"}, TypeError, "result.report"),
        ({"quite_another": 1}, TypeError, "no flag 'quite_another'$"),
        ({"nprocs": 0}, ValueError, "nprocs is 0"),
        ({"nprocs": -1}, ValueError, "nprocs is -1"),
        ({"nprocs": 1.5}, TypeError, "whole number, not float"),
        ({"nprocs": "many"}, ValueError, "'many'"),
        ({"max_restarts": -1}, ValueError, "max_restarts is -1"),
        ({"timeout": 0}, ValueError, "timeout is 0"),
        ({"timeout": float("nan")}, ValueError, "timeout is nan"),
        ({"timeout": "1"}, TypeError, "not str"),
        ({"start": "fork"}, ValueError, "'import' or 'pickle'"),
        ({"args": 3}, TypeError, r"\(argument,\)"),
        ({"tee": object()}, TypeError, "tee is"),
    ],
)
def test_bad_arguments_are_refused_before_any_process(monkeypatch, settings, error, text):
    monkeypatch.setattr(os, "posix_spawn", None)
    with pytest.raises(error, match=text):
        rdzv.launch(rank_times, **{"args": (1,), **settings})


def test_an_argument_that_cannot_be_pickled_is_named(monkeypatch):
    monkeypatch.setattr(os, "posix_spawn", None)
    with pytest.raises(TypeError, match=r"rank_times cannot be sent to workers: args\[1\]\['loader'\]"):
        rdzv.launch(rank_times, (1, {"loader": sys._getframe()}), nprocs=1)


def test_a_value_that_the_launcher_refuses_is_an_error_with_its_words():
    with pytest.raises(ValueError, match="nnodes"):
        rdzv.launch(rank_times, (1,), nprocs=1, nnodes="1:2:3")
    with pytest.raises(ValueError, match="no-such-backend"):
        rdzv.launch(rank_times, (1,), nprocs=1, rdzv_backend="no-such-backend", rdzv_endpoint="127.0.0.1:1")


def test_a_value_that_is_not_a_number_is_an_error_with_its_words_on_stderr(capfd):
    with pytest.raises(ValueError, match="the reason is on stderr"):
        rdzv.launch(rank_times, (1,), nprocs=1, node_rank="x")
    assert "--node-rank is 'x', but must be a whole number" in capfd.readouterr().err


def test_the_flags_are_those_of_the_launcher():
    from rdzv import _flags

    command = [sys.executable, Path(__file__).parents[2] / "build" / "flags.py", rdzv.find_rdzv_bin()]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert Path(_flags.__file__).read_text() == written, "run `cargo xtask flags`"


def test_flags_reach_the_launcher(tmp_path):
    events = tmp_path / "events.json"
    flags = {"events_file": events, "role": "trainer", "rdzv_conf": {"timeout": 5}, "standalone": True}
    assert rdzv.launch("os:getenv", ("ROLE_NAME",), nprocs=1, **flags)[0] == "trainer"
    assert '"ranks_assigned"' in events.read_text()


def test_two_nodes_make_one_world(tmp_path):
    script = (
        "import sys, rdzv; print(sorted(rdzv.launch('rdzv.worker:rank', nprocs=2, nnodes=2, rdzv_backend='c10d',"
        " rdzv_endpoint=sys.argv[1], rdzv_id='two').values()))"
    )
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = [
        subprocess.Popen([sys.executable, "-c", script, endpoint], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    printed = sorted(node.communicate(timeout=60)[0].strip() for node in nodes)
    assert printed == ["[0, 1]", "[2, 3]"]


def test_a_worker_may_launch():
    assert rdzv.launch("launch.functions:launch_in_worker", nprocs=1)[0] == {0: 0, 1: 10}


def test_a_temporary_folder_that_does_not_exist_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    assert rdzv.launch(rank_times, (1,), nprocs=1).return_values == {0: 0}


def test_nothing_is_left_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rdzv.launch(rank_times, (1,), nprocs=2)
    with pytest.raises(rdzv.WorkerGroupFailed):
        rdzv.launch(fail_on, (0,), nprocs=2)
    assert os.listdir(tmp_path) == []
