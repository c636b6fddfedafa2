"""Tests of the names of the first version of torchelastic."""

import threading

import pytest

import rdzv
from rdzv import elastic
from rdzv.rendezvous import RendezvousInfo, RendezvousParameters
from rdzv.torchelastic import rendezvous
from rdzv.torchelastic.agent.server import api


class Handler(rendezvous.RendezvousHandler):
    """Handler of the first version: its rounds are tuples."""

    def __init__(self, store, rank=0, nodes=1):
        self.store, self.rank, self.nodes, self.waiting = store, rank, nodes, [0, 1]

    def get_backend(self):
        return "mine"

    def get_run_id(self):
        return "job"

    def next_rendezvous(self):
        return self.store, self.rank, self.nodes

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return 0


class Calls(api.SimpleElasticAgent):
    """Agent of the first version, whose workers end immediately."""

    def _start_workers(self, worker_group):
        self.found, self.failed = {}, {}
        for worker in worker_group.workers:
            try:
                self.found[worker.global_rank] = worker_group.spec.fn(worker, *worker_group.spec.args)
            except Exception as error:
                self.failed[worker.global_rank] = error
        return {worker.local_rank: worker.global_rank for worker in worker_group.workers}

    def _monitor_workers(self, worker_group):
        assert worker_group.state is api.WorkerState.HEALTHY
        if self.failed:
            return api.MonitorResult(api.WorkerState.FAILED, exceptions=self.failed)
        return api.MonitorResult(api.WorkerState.SUCCEEDED, ret_vals=self.found)

    def _stop_workers(self, worker_group):
        self.stops = getattr(self, "stops", 0) + 1


def spec(fn, args=(), handler=None, **settings):
    return api.WorkerSpec("trainer", 2, fn, args, handler or Handler(rdzv.HashStore()), monitor_interval=0.01, **settings)


def test_names_and_defaults_are_those_of_the_first_version():
    made = api.WorkerSpec("trainer", 2, print, (1,), None)
    assert (made.max_restarts, made.monitor_interval, made.master_port) == (100, 5.0, None)
    assert (made.fn, made.args, made.rdzv_handler) == (print, (1,), None)
    assert [state.value for state in api.WorkerState] == [0, 1, 2, 4, 8, 16, 32]
    assert [state.name for state in api.WorkerState] == [state.name for state in elastic.WorkerState]
    assert api.WorkerState.is_running(api.WorkerState.UNHEALTHY) and not api.WorkerState.is_running(api.WorkerState.INIT)
    found = api.MonitorResult(api.WorkerState.SUCCEEDED, {0: 1}, {1: ValueError()})
    assert (found.ret_vals, list(found.exceptions)) == ({0: 1}, [1]) and api.MonitorResult(api.WorkerState.INIT).ret_vals is None
    group = api.WorkerGroup(made)
    assert group.state is api.WorkerState.INIT and group.group_rank is None and group.store is None
    # They are the same classes.
    assert issubclass(api.SimpleElasticAgent, elastic.SimpleElasticAgent) and api.Worker is elastic.Worker
    assert rendezvous.RendezvousParameters is rdzv.rendezvous.RendezvousParameters
    assert rendezvous.RendezvousTimeoutException is rdzv.rendezvous.RendezvousTimeoutError
    assert issubclass(rendezvous.RendezvousNonRetryableError, rendezvous.RendezvousException)


def test_a_run_returns_the_values_by_global_rank():
    agent = Calls(spec(lambda worker, factor: worker.global_rank * factor, (5,)))
    assert agent.get_worker_group().state is api.WorkerState.INIT
    assert agent.run() == {0: 0, 1: 5} and agent.run("trainer") == {0: 0, 1: 5}
    group = agent.get_worker_group()
    assert isinstance(group, api.WorkerGroup) and group.state is api.WorkerState.SUCCEEDED
    assert group.master_port > 0 and group.store.get("MASTER_PORT") == str(group.master_port).encode()
    assert not hasattr(agent, "stops")


def test_a_failure_raises_the_exceptions_by_global_rank():
    error = ValueError("broken")

    def fail(worker):
        if worker.local_rank == 1:
            raise error

    agent = Calls(spec(fail, max_restarts=1))
    with pytest.raises(api.WorkerGroupFailureException, match=r"^\[trainer\] exceeded max_restarts=1$") as raised:
        agent.run()
    assert raised.value.get_worker_exceptions() == {1: error}
    assert agent.get_worker_group().state is api.WorkerState.FAILED and agent._remaining_restarts == 0 and agent.stops >= 1


def test_two_agents_meet_at_the_endpoint_of_rank_0():
    store, results = rdzv.HashStore(), {}

    def run(rank):
        names = ("MASTER_ADDR", "MASTER_PORT")
        agent = Calls(spec(lambda worker: (worker.world_size, *map(worker.environment.get, names)), handler=Handler(store, rank, 2)))
        results.update(agent.run())

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [0, 1, 2, 3] and len(set(results.values())) == 1 and results[0][0] == 4


def test_a_handler_of_rdzv_serves_too():
    made = rendezvous.get_rendezvous_handler(RendezvousParameters("c10d", "", "job", 1, 1))
    assert Calls(spec(lambda worker: worker.global_rank, handler=made)).run() == {0: 0, 1: 1}
    store, rank, world_size = RendezvousInfo("store", 1, 2, None)
    assert (store, rank, world_size) == ("store", 1, 2)


def test_another_result_is_refused():
    agent = Calls(spec(lambda worker: None))
    agent._monitor_workers = lambda group: elastic.RunResult(elastic.WorkerState.SUCCEEDED)
    with pytest.raises(TypeError, match="must be a MonitorResult"):
        agent.run()
