"""Tests of `SimpleElasticAgent`: the native agent calls four methods."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from ports import free_port

import rdzv
from rdzv.elastic import (
    ProcessFailure,
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from rdzv.rendezvous import RendezvousParameters, get_rendezvous_handler


def handler(endpoint="", run_id="job", nodes=1, **options):
    return get_rendezvous_handler(RendezvousParameters("c10d", endpoint, run_id, nodes, nodes, **options))


def spec(workers=2, **settings):
    settings = {"role": "trainer", "rdzv_handler": handler(), "entrypoint": "work", "max_restarts": 0, **settings}
    return WorkerSpec(local_world_size=workers, monitor_interval=0.01, **settings)


class Threads(SimpleElasticAgent):
    """Agent whose workers are threads that call `work(worker, stop)`."""

    def __init__(self, spec, work, **settings):
        super().__init__(spec, **settings)
        self.work, self.calls, self.thread = work, [], threading.current_thread()

    def note(self, call):
        assert threading.current_thread() is self.thread
        self.calls.append(call)

    def _start_workers(self, worker_group):
        self.note("start")
        self.stop, self.values, self.failures, self.threads = threading.Event(), {}, {}, []
        for worker in worker_group.workers:
            thread = threading.Thread(target=self.run_worker, args=(worker,))
            thread.start()
            self.threads.append(thread)
        return {worker.local_rank: f"thread-{worker.local_rank}" for worker in worker_group.workers}

    def run_worker(self, worker):
        try:
            self.values[worker.global_rank] = self.work(self, worker)
        except Exception as error:
            failure = ProcessFailure(worker.local_rank, os.getpid(), 1, "<N/A>")
            failure.cause = repr(error)
            self.failures[worker.global_rank] = failure

    def _monitor_workers(self, worker_group):
        assert isinstance(worker_group, WorkerGroup)
        if self.failures:
            return RunResult(WorkerState.FAILED, failures=dict(self.failures))
        if len(self.values) == len(worker_group.workers):
            return RunResult(WorkerState.SUCCEEDED, dict(self.values))
        return RunResult(WorkerState.HEALTHY)

    def _stop_workers(self, worker_group):
        self.note("stop")
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _shutdown(self, death_sig=signal.SIGTERM, timeout=30):
        self.note(f"shutdown {death_sig.name} {timeout}")
        if hasattr(self, "stop"):
            self._stop_workers(self._worker_group)


def test_values_of_threads_come_back_by_rank():
    agent = Threads(spec(3), lambda agent, worker: (worker.global_rank, worker.environment["MASTER_ADDR"]))
    before = agent.get_worker_group("trainer")
    assert before.state is WorkerState.INIT and before.workers[1].global_rank == -1
    result = agent.run("trainer")
    assert result.state is WorkerState.SUCCEEDED and not result.is_failed()
    assert result.return_values == {rank: (rank, "127.0.0.1") for rank in range(3)}
    group = agent.get_worker_group()
    assert group is before and group.state is WorkerState.SUCCEEDED
    assert [worker.global_rank for worker in group.workers] == [0, 1, 2]
    assert [worker.id for worker in group.workers] == ["thread-0", "thread-1", "thread-2"]
    assert (group.group_rank, group.group_world_size, group.workers[0].world_size) == (0, 1, 3)
    assert agent.calls[0] == "start" and agent.calls[-2:] == ["shutdown SIGTERM 30", "stop"]


def test_a_failure_is_restarted_and_then_reported():
    attempts = []

    def work(agent, worker):
        if worker.local_rank == 1:
            attempts.append(worker.environment["TORCHELASTIC_RESTART_COUNT"])
            raise ValueError("broken")
        agent.stop.wait()

    result = Threads(spec(2, max_restarts=2), work).run()
    assert attempts == ["0", "1", "2"] and result.restarts == 2
    assert result.state is WorkerState.FAILED and result.is_failed() and list(result.failures) == [1]
    assert result.failures[1].cause == "ValueError('broken')" and result.failures[1].pid == os.getpid()
    assert result.exceptions() == {1: "ValueError('broken')"}


def test_a_restart_that_helps_succeeds():
    def work(agent, worker):
        if worker.environment["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("the first time")
        return "good"

    result = Threads(spec(2, max_restarts=1), work).run()
    assert result.return_values == {0: "good", 1: "good"} and result.restarts == 1


@pytest.mark.parametrize("method", ["_start_workers", "_monitor_workers", "_stop_workers", "_shutdown"])
def test_an_exception_of_a_method_ends_the_run_after_shutdown(method):
    class Mistake(Exception):
        pass

    agent = Threads(spec(), lambda agent, worker: 1 / 0)
    inner = getattr(agent, method)

    def raise_it(*arguments, **named):
        inner(*arguments, **named)
        raise Mistake(method)

    setattr(agent, method, raise_it)
    with pytest.raises(Mistake, match=method) as caught:
        agent.run()
    assert caught.traceback[-1].name == "raise_it"
    assert any(call.startswith("shutdown") for call in agent.calls)
    assert agent.get_worker_group().state is WorkerState.UNKNOWN
    assert not any(thread.is_alive() for thread in agent.threads)


@pytest.mark.parametrize(
    ("found", "error", "text"),
    [
        (None, TypeError, "must be a RunResult"),
        (RunResult(WorkerState.UNKNOWN), rdzv.Error, "UNKNOWN"),
        (RunResult(WorkerState.FAILED, failures={7: ProcessFailure(0, 1, 1, "<N/A>")}), ValueError, "rank 7"),
    ],
)
def test_a_look_that_says_nonsense_ends_the_run(found, error, text):
    agent = Threads(spec(), lambda agent, worker: agent.stop.wait())
    agent._monitor_workers = lambda worker_group: found
    with pytest.raises(error, match=text):
        agent.run()
    assert not any(thread.is_alive() for thread in agent.threads)


def test_ids_that_are_missing_end_the_run():
    agent = Threads(spec(), lambda agent, worker: agent.stop.wait())
    start = agent._start_workers
    agent._start_workers = lambda group: {0: start(group)[0]}
    with pytest.raises(rdzv.Error, match="worker with local rank 1"):
        agent.run()
    assert not any(thread.is_alive() for thread in agent.threads)
    agent = Threads(spec(), lambda agent, worker: agent.stop.wait())
    start = agent._start_workers
    agent._start_workers = lambda group: list(start(group))
    with pytest.raises(TypeError, match="dict of ids"):
        agent.run()
    assert not any(thread.is_alive() for thread in agent.threads)


def on_two_nodes(work):
    """Returns the results of two agents, with one worker and with two."""
    endpoint = f"127.0.0.1:{free_port()}"
    results = {}

    def run(node):
        agent = Threads(spec(node + 1, rdzv_handler=handler(endpoint, nodes=2)), work)
        results[node] = agent.run()

    nodes = [threading.Thread(target=run, args=(node,)) for node in range(2)]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join(60)
    return results


def test_two_agents_make_one_world():
    results = on_two_nodes(lambda agent, worker: worker.world_size)
    merged = {**results[0], **results[1]}
    assert merged == {0: 3, 1: 3, 2: 3} and sorted(map(len, results.values())) == [1, 2]


def test_agents_share_the_store_of_the_round():
    def work(agent, worker):
        store = agent.get_worker_group().store
        assert isinstance(store, rdzv.Store) and repr(store) == "WorkerGroup.store"
        store.set(f"of {worker.global_rank}", str(worker.global_rank))
        # A wait in the store itself would delay the other worker of the node.
        with store.clone() as own:
            assert own.get("of 2", timeout=30) == b"2"
            total = own.add("arrived", 1)
            own.barrier("all", worker.world_size, timeout=30)
        return total

    results = on_two_nodes(work)
    assert sorted([*results[0].values(), *results[1].values()]) == [1, 2, 3]


def test_a_node_that_is_alone_has_a_store_for_each_round():
    stores = []

    def work(agent, worker):
        group = agent.get_worker_group()
        stores.append(group.store)
        assert group.store is group.store and group.store.add("rounds", 1) == 1
        if len(stores) == 1:
            raise ValueError("once more")

    agent = Threads(spec(1, max_restarts=1), work)
    assert agent.get_worker_group().store is None
    assert not agent.run().is_failed()
    assert len(stores) == 2 and stores[0] is not stores[1]


def test_a_rendezvous_that_nobody_else_joins_times_out():
    agent = Threads(spec(rdzv_handler=handler("127.0.0.1:0", nodes=2, join_timeout=1)), None)
    with pytest.raises(rdzv.rendezvous.RendezvousTimeoutError) as caught:
        agent.run()
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, rdzv.Error)


def test_roles_of_others_are_refused():
    agent = Threads(spec(), None)
    for call in (agent.run, agent.get_worker_group):
        with pytest.raises(ValueError, match="none of role 'other'"):
            call("other")


def test_handlers_and_values_are_checked():
    with pytest.raises(TypeError, match="get_rendezvous_handler"):
        Threads(spec(rdzv_handler=object()), None)
    with pytest.raises(ValueError, match="no-such-handler|event"):
        Threads(spec(event_log_handler="no-such-handler"), None)
    with pytest.raises(ValueError, match="65536"):
        Threads(spec(rdzv_handler=handler("host:99999", nodes=2)), None).run()
    for settings in ({"local_world_size": 0}, {"monitor_interval": 0}, {"max_restarts": -1}, {"entrypoint": None}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            WorkerSpec(**{"role": "r", "local_world_size": 1, "rdzv_handler": None, "entrypoint": "x", **settings})


def test_an_agent_may_run_again():
    agent = Threads(spec(), lambda agent, worker: worker.global_rank)
    assert agent.run().return_values == agent.run().return_values == {0: 0, 1: 1}


INTERRUPTED = """
import faulthandler, os, signal, sys, threading, time
faulthandler.enable()
faulthandler.dump_traceback_later(300, exit=True)
sys.path.insert(0, sys.argv[1])
from elastic.test_agent import Threads, handler, spec
kind, times = sys.argv[2], int(sys.argv[3])
for number in range(times):
    if kind == "rendezvous":
        agent = Threads(spec(rdzv_handler=handler("127.0.0.1:0", nodes=2)), None)
    else:
        agent = Threads(spec(), lambda agent, worker: agent.stop.wait())
    sent, begun = [], threading.Event()
    def interrupt():
        begun.wait()
        time.sleep(0.02 * (number % 5) + 0.1)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        begun.set()
        agent.run()
        raise SystemExit("not interrupted")
    except KeyboardInterrupt:
        took = time.monotonic() - sent[0]
        assert took < 2, took
    assert any(call.startswith("shutdown") for call in agent.calls), agent.calls
assert threading.active_count() == 1, threading.enumerate()
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
assert not any(name.startswith("rdzv-agent") for name in names), names
print("good")
"""


@pytest.mark.parametrize(("kind", "times"), [("rendezvous", 20), ("workers", 100)])
def test_ctrl_c_ends_a_run_again_and_again(kind, times):
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, os.path.dirname(os.path.dirname(__file__)), kind, str(times)],
        capture_output=True,
        text=True,
        timeout=320,
    )
    assert ended.stdout == "good\n", ended.stderr[-4000:]


def test_others_look_while_the_agent_runs():
    agent = Threads(spec(), lambda agent, worker: seen.wait(30))
    seen = threading.Event()
    states = []

    def look():
        while agent.get_worker_group().state is not WorkerState.HEALTHY:
            time.sleep(0.005)
        states.append(agent.get_worker_group().workers[1].global_rank)
        seen.set()

    looking = threading.Thread(target=look)
    looking.start()
    agent.run()
    looking.join()
    assert states == [1]
