"""Tests of rendezvous handlers of the user, and of overridden methods."""

import os
import signal
import threading
import time

import pytest
from elastic.test_agent import Threads, handler, spec
from ports import free_port

import rdzv
from rdzv.elastic import Worker, WorkerState
from rdzv.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)


class Own(RendezvousHandler):
    """Handler whose rounds have fixed ranks and a store in memory."""

    def __init__(self, store=None, rank=0, nodes=1, waiting=()):
        self.store, self.rank, self.nodes = store or rdzv.HashStore(), rank, nodes
        self.waiting, self.rounds, self.calls = list(waiting), 0, []

    use_agent_store = True

    def get_backend(self):
        return "own"

    def get_run_id(self):
        return "job"

    def next_rendezvous(self):
        self.rounds += 1
        self.calls.append("next_rendezvous")
        store = self.store.prefix(f"round-{self.rounds}")
        return RendezvousInfo(store, self.rank, self.nodes, RendezvousStoreInfo("own-host", 4242))

    def is_closed(self):
        return False

    def set_closed(self):
        self.calls.append("set_closed")

    def num_nodes_waiting(self):
        return self.waiting.pop(0) if self.waiting else 0

    def shutdown(self):
        self.calls.append("shutdown")
        return True


def test_a_handler_of_the_user_drives_an_agent():
    own = Own()
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID")
    agent = Threads(spec(2, rdzv_handler=own), lambda agent, worker: [worker.environment[name] for name in names])
    result = agent.run()
    assert result.return_values == {rank: [str(rank), "2", "own-host", "4242", "True", "job"] for rank in (0, 1)}
    group = agent.get_worker_group()
    assert (group.state, group.group_rank, group.group_world_size) == (WorkerState.SUCCEEDED, 0, 1)
    assert isinstance(group.store, rdzv.PrefixStore) and (group.master_addr, group.master_port) == ("own-host", 4242)
    # The handler belongs to the caller, who can use it again.
    assert own.calls == ["next_rendezvous"]
    assert agent.run().return_values == result.return_values and own.rounds == 2


def test_agents_with_handlers_of_the_user_exchange_their_ranks():
    store, agents = rdzv.HashStore(), []
    for rank, workers in enumerate((1, 2, 3)):
        role = "server" if rank == 1 else "trainer"
        agents.append(Threads(spec(workers, role=role, rdzv_handler=Own(store, rank, 3)), sizes))
    threads = [threading.Thread(target=run_here, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = [agent.result.return_values for agent in agents]
    assert found == [
        {0: (0, 6, 4)},
        {1: (0, 6, 2), 2: (1, 6, 2)},
        {3: (1, 6, 4), 4: (2, 6, 4), 5: (3, 6, 4)},
    ]


def sizes(agent, worker):
    return worker.role_rank, worker.world_size, worker.role_world_size


def run_here(agent):
    agent.thread = threading.current_thread()
    agent.result = agent.run()


def test_waiting_nodes_restart_the_workers_and_use_no_restart():
    own = Own(waiting=[0, 2])

    def work(agent, worker):
        if own.rounds == 1:
            agent.stop.wait()
        return own.rounds

    agent = Threads(spec(2, rdzv_handler=own), work)
    result = agent.run()
    assert result.return_values == {0: 2, 1: 2} and result.restarts == 0
    assert agent.calls[:3] == ["start", "stop", "start"]


def test_a_failure_is_restarted_through_the_handler():
    own = Own()
    left = []

    def work(agent, worker):
        left.append(agent._remaining_restarts)
        raise ValueError("broken")

    agent = Threads(spec(1, rdzv_handler=own, max_restarts=2), work)
    assert agent._remaining_restarts == 2
    result = agent.run()
    assert result.state is WorkerState.FAILED and own.rounds == 3
    assert left == [2, 1, 0] and agent._remaining_restarts == 0


class Overriding(Threads):
    """Agent that records its methods, before and after."""

    def _initialize_workers(self, worker_group):
        self.note("initialize")
        super()._initialize_workers(worker_group)
        self.note("initialized")

    def _restart_workers(self, worker_group):
        self.note("restart")
        super()._restart_workers(worker_group)

    def _rendezvous(self, worker_group):
        self.note("rendezvous")
        super()._rendezvous(worker_group)
        self.note(f"round of {worker_group.group_world_size}")

    def _assign_worker_ranks(self, store, group_rank, group_world_size, spec):
        assert isinstance(store, rdzv.Store)
        self.note("assign")
        return super()._assign_worker_ranks(store, group_rank, group_world_size, spec)


@pytest.mark.parametrize("made", [Own, handler])
def test_four_methods_can_be_overridden(made):
    attempts = []

    def work(agent, worker):
        attempts.append(worker.environment["RANK"])
        if len(attempts) == 1:
            raise ValueError("the first time")

    agent = Overriding(spec(1, rdzv_handler=made(), max_restarts=1), work)
    assert not agent.run().is_failed() and attempts == ["0", "0"]
    attempt = ["initialize", "rendezvous", "assign", "round of 1", "start", "initialized"]
    without_stops = [call for call in agent.calls if call != "stop"]
    assert without_stops == [*attempt, "restart", *attempt, "shutdown SIGTERM 30"]


class Rewritten(Threads):
    """Agent with its own methods, which do not call the originals."""

    def _initialize_workers(self, worker_group):
        self._rendezvous(worker_group)
        for local_rank, number in self._start_workers(worker_group).items():
            worker_group.workers[local_rank].id = number
        worker_group.state = WorkerState.HEALTHY

    def _rendezvous(self, worker_group):
        info = worker_group.spec.rdzv_handler.next_rendezvous()
        worker_group.store, worker_group.group_rank, worker_group.group_world_size = info.store, info.rank, info.world_size
        worker_group.master_addr, worker_group.master_port = "replaced", 1
        worker_group.workers = self._assign_worker_ranks(info.store, info.rank, info.world_size, worker_group.spec)

    def _assign_worker_ranks(self, store, group_rank, group_world_size, spec):
        return [Worker(local_rank, 10 + local_rank, local_rank, 20, 5) for local_rank in range(spec.local_world_size)]


def test_methods_can_be_rewritten():
    agent = Rewritten(spec(2, rdzv_handler=Own()), lambda agent, worker: (worker.world_size, worker.role_world_size))
    assert agent.run().return_values == {10: (20, 5), 11: (20, 5)}
    assert agent.get_worker_group().master_addr == "replaced"


@pytest.mark.parametrize("made", [Own, handler])
def test_ranks_that_the_native_agent_cannot_take_end_the_run(made):
    class Reversed(Threads):
        def _assign_worker_ranks(self, *arguments):
            return super()._assign_worker_ranks(*arguments)[::-1]

    with pytest.raises(ValueError, match="consecutive"):
        Reversed(spec(2, rdzv_handler=made()), None).run()

    class Moved(Threads):
        def _assign_worker_ranks(self, *arguments):
            return [Worker(0, 1, 0, 2, 2)]

    agent = Moved(spec(1, rdzv_handler=made()), lambda agent, worker: worker.global_rank)
    if made is Own:
        assert agent.run().return_values == {1: 1}
    else:
        with pytest.raises(ValueError, match="has assigned rank 0"):
            agent.run()


@pytest.mark.parametrize("method", ["next_rendezvous", "num_nodes_waiting"])
def test_an_exception_of_the_handler_ends_the_run(method):
    own = Own()

    def raise_it():
        raise RendezvousClosedError("the job has ended")

    setattr(own, method, raise_it)
    agent = Threads(spec(1, rdzv_handler=own), lambda agent, worker: agent.stop.wait())
    with pytest.raises(RendezvousClosedError, match="the job has ended"):
        agent.run()
    assert agent.calls[-1] == "stop" or agent.calls[-1].startswith("shutdown")
    assert agent.get_worker_group().state is WorkerState.UNKNOWN


@pytest.mark.parametrize("method", ["_initialize_workers", "_restart_workers", "_rendezvous", "_assign_worker_ranks"])
@pytest.mark.parametrize("made", [Own, handler])
def test_an_exception_of_an_override_ends_the_run(method, made):
    class Mistake(Exception):
        pass

    def raise_it(*_):
        raise Mistake(method)

    agent = Threads(spec(1, rdzv_handler=made(), max_restarts=1), lambda agent, worker: 1 / 0)
    if method == "_assign_worker_ranks":
        agent = type("Assigning", (Threads,), {method: raise_it})(agent.get_worker_group().spec, None)
    else:
        setattr(agent, method, raise_it)
    with pytest.raises(Mistake, match=method):
        agent.run()
    assert any(call.startswith("shutdown") for call in agent.calls)


def test_control_c_ends_a_rendezvous_of_the_user():
    own = Own()
    own.next_rendezvous = lambda: time.sleep(60)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    agent, begin = Threads(spec(1, rdzv_handler=own), None), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        agent.run()
    assert time.monotonic() - begin < 5 and agent.calls == ["shutdown SIGTERM 30"]


def test_a_handler_of_torch_drives_agents():
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    endpoint = f"localhost:{free_port()}"
    agents = []
    for workers in (1, 2):
        made = get_rendezvous_handler(RendezvousParameters("c10d", endpoint, "job", 2, 2, local_addr="localhost"))
        agents.append(Threads(spec(workers, rdzv_handler=made), lambda agent, worker: worker.world_size))
    threads = [threading.Thread(target=run_here, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {**agents[0].result, **agents[1].result} == {0: 3, 1: 3, 2: 3}


@pytest.mark.parametrize("made", [Own, lambda: handler(f"localhost:{free_port()}")])
def test_the_methods_work_without_a_run(made):
    rendezvous = made()
    agent = Threads(spec(2, rdzv_handler=rendezvous), lambda agent, worker: None)
    group = agent.get_worker_group()
    agent._rendezvous(group)
    assert (group.group_rank, group.group_world_size) == (0, 1) and group.master_port > 0
    assert [worker.global_rank for worker in group.workers] == [0, 1] and group.workers[0].id is None
    for method in (agent._initialize_workers, agent._restart_workers):
        method(group)
        assert group.state is WorkerState.HEALTHY and group.workers[1].id == "thread-1"
    assert agent.calls == ["start", "stop", "start"]
    # The shutdown does not wait for the group's connection to the store.
    begin = time.monotonic()
    assert rendezvous.shutdown() and time.monotonic() - begin < 5


def test_a_handler_needs_its_methods():
    class Half:
        def next_rendezvous(self): ...

    with pytest.raises(TypeError, match="Half without get_backend, get_run_id, is_closed, num_nodes_waiting, set_closed"):
        Threads(spec(rdzv_handler=Half()), None)
