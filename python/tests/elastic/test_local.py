"""Tests of `LocalElasticAgent`, `elastic_launch` and `record`."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

import rdzv.worker
from rdzv.elastic import (
    ChildFailedError,
    DefaultLogsSpecs,
    LaunchConfig,
    LocalElasticAgent,
    ProcessFailure,
    Std,
    WorkerGroupFailureException,
    WorkerSpec,
    WorkerState,
    elastic_launch,
    launch_agent,
    record,
)
from rdzv.rendezvous import RendezvousParameters, get_rendezvous_handler


def work(number):
    return rdzv.worker.rank() + number


def fail(_=None):
    if rdzv.worker.rank() == 1:
        raise KeyError("gone")
    time.sleep(60)


def speak(text):
    print(text, flush=True)


def spec(entrypoint=work, args=(10,), workers=2, **settings):
    handler = get_rendezvous_handler(RendezvousParameters("c10d", "", "job", 1, 1))
    settings = {"max_restarts": 0, **settings}
    return WorkerSpec("trainer", workers, handler, entrypoint=entrypoint, args=args, **settings)


def test_an_agent_runs_functions_and_shows_its_group():
    agent = LocalElasticAgent(spec(), DefaultLogsSpecs())
    assert agent.get_worker_group().state is WorkerState.INIT
    result = agent.run()
    assert result.state is WorkerState.SUCCEEDED and result.return_values == {0: 10, 1: 11}
    group = agent.get_worker_group("trainer")
    assert group.state is WorkerState.SUCCEEDED and (group.group_rank, group.group_world_size) == (0, 1)
    assert [worker.global_rank for worker in group.workers] == [0, 1] and group.master_addr == "127.0.0.1"
    assert all(isinstance(worker.id, int) for worker in group.workers)
    # The store is in the launcher's process.
    assert group.store is None


def test_a_failed_run_is_a_result_and_no_exception():
    result = LocalElasticAgent(spec(fail, (), max_restarts=1), DefaultLogsSpecs()).run()
    assert result.is_failed() and result.restarts == 1
    assert result.failures[1].cause == "KeyError: 'gone'" and result.failures[1].rank == 1


def test_one_agent_runs_at_a_time():
    agent, other = (LocalElasticAgent(spec(time.sleep, (1.5,)), DefaultLogsSpecs()) for _ in range(2))
    running = threading.Thread(target=agent.run)
    running.start()
    while agent.get_worker_group().state is not WorkerState.HEALTHY:
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="another LocalElasticAgent"):
        other.run()
    running.join()


def test_what_the_native_launcher_does_not_know_is_refused():
    class Own:
        def get_backend(self):
            return "own"

    own = WorkerSpec("trainer", 1, Own(), entrypoint=work)
    with pytest.raises(TypeError, match="SimpleElasticAgent"):
        LocalElasticAgent(own, DefaultLogsSpecs())
    with pytest.raises(TypeError, match="LogsSpecs, not object"):
        LocalElasticAgent(spec(), object())
    for name, value in {"master_addr": "127.0.0.1", "master_port": 29500}.items():
        with pytest.raises(ValueError, match=f"{name} of the specification is {value!r}"):
            LocalElasticAgent(spec(**{name: value}), DefaultLogsSpecs())
    with pytest.raises(ValueError, match="TORCHELASTIC_HEALTH_CHECK_PORT"):
        LocalElasticAgent(spec(), DefaultLogsSpecs(), health_check_server=object())
    with pytest.raises(ValueError, match="TORCHELASTIC_HEALTH_CHECK_PORT"):
        elastic_launch(LaunchConfig(1, 1, 1), work, health_check_server=object())
    with pytest.raises(ValueError, match="TORCHELASTIC_HEALTH_CHECK_PORT"):
        launch_agent(LaunchConfig(1, 1, 1), work, [1], health_check_server=object())
    with pytest.raises(ValueError, match="start_method"):
        LocalElasticAgent(spec(), DefaultLogsSpecs(), start_method="thread")
    with pytest.raises(ValueError, match="none of role"):
        LocalElasticAgent(spec(), DefaultLogsSpecs()).run("other")


def test_a_launch_returns_values_and_raises_the_failures():
    assert elastic_launch(LaunchConfig(1, 1, 2), work)(5) == {0: 5, 1: 6}
    assert launch_agent(LaunchConfig(1, 1, 1), "true", []) == {0: None}
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0), fail)()
    assert caught.value.get_first_failure()[0] == 1
    assert "fail FAILED" in caught.value.format_msg()
    assert isinstance(caught.value, WorkerGroupFailureException)
    exception = caught.value.get_worker_exceptions()[1]
    assert type(exception) is KeyError and exception.args == ("gone",)


def test_the_config_is_for_launch_too():
    config = LaunchConfig(1, 1, 3, max_restarts=0, role="trainer")
    assert len(rdzv.launch(work, (1,), config=config)) == 3
    assert len(rdzv.launch(work, (1,), config=config, nprocs=1)) == 1


def test_another_start_method_warns_once_and_takes_local_functions():
    config = LaunchConfig(1, 1, 1, start_method="fork")
    with pytest.warns(UserWarning, match="new interpreters"):
        assert elastic_launch(config, lambda: "local")() == {0: "local"}
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert elastic_launch(config, lambda: "local")() == {0: "local"}


def test_output_goes_where_the_specs_say(tmp_path):
    logs = DefaultLogsSpecs(str(tmp_path), redirects=Std.OUT, tee={1: Std.ERR})
    elastic_launch(LaunchConfig(1, 1, 2, logs_specs=logs, run_id="job"), speak)("words")
    found = sorted(path.relative_to(tmp_path).parts[1:] for path in tmp_path.rglob("*.log"))
    assert found == [("attempt_0", "0", "stdout.log"), ("attempt_0", "1", "stderr.log"), ("attempt_0", "1", "stdout.log")]
    assert {path.read_text() for path in tmp_path.rglob("stdout.log")} == {"words\n"}
    assert Std.from_str("2") is Std.ERR and Std.from_str("0:1,12:3") == {0: Std.OUT, 12: Std.ALL}
    with pytest.raises(ValueError, match="'4'"):
        Std.from_str("4")


def test_bad_configurations_are_refused():
    for arguments, settings, text in [
        ((2, 1, 1), {}, "min_nodes"),
        ((0, 1, 1), {}, "min_nodes"),
        ((1, 1, 0), {}, "nproc_per_node"),
        ((1, 1, 1), {"shutdown_timeout": -1}, "shutdown_timeout"),
    ]:
        with pytest.raises(ValueError, match=text):
            LaunchConfig(*arguments, **settings)


def test_record_leaves_the_error_and_raises_it(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))

    @record
    def main(code=None):
        if code is not None:
            sys.exit(code)
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        main()
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "ValueError: no data" and "in main" in message["extraInfo"]["py_callstack"]
    assert main(0) is None and main.__name__ == "main"
    with pytest.raises(SystemExit):
        main(3)


def test_record_hands_on_the_error_of_the_first_worker(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))

    @record
    def main():
        elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0), fail)()

    with pytest.raises(ChildFailedError):
        main()
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "KeyError: 'gone'" and message["errorCode"] == 1


def test_a_failure_reads_its_error_file(tmp_path):
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "plain", "timestamp": "12"}))
    plain = ProcessFailure(1, 7, 3, str(path))
    assert (plain.message, plain.timestamp, plain.cause, plain.signal_name()) == ("plain", 12, "plain", "<N/A>")
    gone = ProcessFailure(1, 7, -11, str(tmp_path / "none"))
    assert gone.error_file == "<N/A>" and gone.message == "Signal 11 (SIGSEGV) received by PID 7"


def test_it_is_a_program_too(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from rdzv.elastic import LaunchConfig, elastic_launch\n"
        "def double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n    print(elastic_launch(LaunchConfig(1, 1, 2), double)(21))\n"
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, env=dict(os.environ), timeout=60)
    assert ended.stdout == "{0: 42, 1: 42}\n", ended.stderr
