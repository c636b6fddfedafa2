"""Tests of c10d rendezvous with nodes of rdzv and PyTorch, on every store."""

import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

import launching
from conftest import RdzvServer, TorchServer
from our_node import OurNode

CONFIG = {
    "join_timeout": 60,
    "last_call_timeout": 1,
    "keep_alive_interval": 1,
    "keep_alive_max_attempt": 3,
    "is_host": "0",
}

# Ranks follow the alphabetical order of the addresses. Both addresses are this machine.
FIRST, SECOND = "127.0.0.1", "localhost"


class PlainServer:
    """Store server of the library, without a coordinator: nodes share its state."""

    def __init__(self):
        self.process = subprocess.Popen(
            [launching.PLAIN_STORE, "127.0.0.1"],
            env=launching.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.host, _, port = self.process.stdout.readline().strip().rpartition(":")
        self.port = int(port)

    def stop(self):
        # The process exits when its standard input closes.
        self.process.communicate(timeout=15)


@pytest.fixture(params=["pytorch", "ours without rendezvous", "ours with rendezvous"])
def open_run(request):
    if request.param == "pytorch":
        server = TorchServer(libuv=True)
    elif request.param == "ours without rendezvous":
        server = PlainServer()
    else:
        server = RdzvServer()
    yield Run(server)
    server.stop()


class Run:
    """Run at a store, with all its nodes."""

    def __init__(self, server):
        self.endpoint = f"{server.host}:{server.port}"
        self.run_id = uuid.uuid4().hex
        self.nodes = []
        self.pool = ThreadPoolExecutor(max_workers=8)

    def ours(self, nodes, address):
        config = ",".join(f"{key}={value}" for key, value in CONFIG.items())
        node = OurNode("c10d", self.endpoint, self.run_id, nodes, config, address)
        self.nodes.append(node)
        return node

    def theirs(self, nodes, address):
        least, most = map(int, nodes.split(":"))
        parameters = RendezvousParameters(
            "c10d", self.endpoint, self.run_id, least, most, local_addr=address, **CONFIG
        )
        backend, store = create_backend(parameters)
        return create_handler(store, backend, parameters)

    def begin(self, handler):
        """Starts a join of PyTorch's handler; `joined` waits for it."""
        return self.pool.submit(handler.next_rendezvous)

    def close(self):
        for node in self.nodes:
            node.close()
        self.pool.shutdown(wait=False, cancel_futures=True)


@pytest.fixture
def run(open_run):
    yield open_run
    open_run.close()


def joined(future):
    """Returns rank, world size, master address and port of a join of PyTorch."""
    info = future.result(180)
    bootstrap = info.bootstrap_store_info
    return info.rank, info.world_size, bootstrap.master_addr, bootstrap.master_port


def wait_for(question):
    """Polls until the answer is yes, like PyTorch's agent."""
    end = time.monotonic() + 30
    while not question():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


@pytest.mark.parametrize("leader", ["ours", "theirs"])
def test_one_of_each_agree_on_ranks_and_master(run, leader):
    ours = run.ours("2:2", FIRST if leader == "ours" else SECOND)
    theirs = run.theirs("2:2", SECOND if leader == "ours" else FIRST)
    future = run.begin(theirs)
    ours.begin("join")
    number, rank, size, *master = ours.joined()
    assert (number, size) == (0, 2)
    their_rank, their_size, *their_master = joined(future)
    assert (rank, their_rank) == ((0, 1) if leader == "ours" else (1, 0))
    assert their_size == 2
    assert master == their_master
    store = future.result().store
    assert ours.call("set from-us here") == "set"
    assert store.get("from-us") == b"here"
    store.set("from-them", "there")
    assert ours.call("get from-them") == "value there"


@pytest.mark.parametrize("leader", ["ours", "theirs"])
def test_a_late_node_of_ours_is_let_in_by_both(run, leader):
    ours = run.ours("2:3", FIRST if leader == "ours" else SECOND)
    theirs = run.theirs("2:3", SECOND if leader == "ours" else FIRST)
    future = run.begin(theirs)
    ours.begin("join")
    ours.joined()
    joined(future)
    late = run.ours("2:3", "localhost")
    late.begin("join")
    ours.hears("membership 0 ")
    wait_for(lambda: theirs.num_nodes_waiting() > 0)
    ours.begin("join")
    future = run.begin(theirs)
    results = [node.joined()[1:] for node in (ours, late)] + [joined(future)]
    assert sorted(rank for rank, *_ in results) == [0, 1, 2]
    assert {size for _, size, *_ in results} == {3}
    # A leader of PyTorch does not publish the master address again.
    assert len({tuple(master) for _, _, *master in results}) == 1, results


def test_a_late_node_of_theirs_is_let_in_by_ours(run):
    nodes = [run.ours("2:3", FIRST), run.ours("2:3", FIRST)]
    for node in nodes:
        node.begin("join")
    for node in nodes:
        node.joined()
    future = run.begin(run.theirs("2:3", SECOND))
    for node in nodes:
        node.hears("membership 0 ")
        node.begin("join")
    results = [node.joined()[1:] for node in nodes] + [joined(future)]
    assert sorted(rank for rank, *_ in results) == [0, 1, 2]
    assert len({tuple(master) for _, _, *master in results}) == 1, results


def test_ours_notice_that_one_of_ours_was_killed_and_go_on_with_theirs(run):
    ours, victim = run.ours("2:3", FIRST), run.ours("2:3", FIRST)
    theirs = run.theirs("2:3", SECOND)
    future = run.begin(theirs)
    for node in (ours, victim):
        node.begin("join")
    for node in (ours, victim):
        node.joined()
    joined(future)
    victim.kill()
    assert "lost" in (heard := ours.hears("membership 0 ")) or "connection" in heard, heard
    ours.begin("join")
    # PyTorch's agents learn of the change from the nodes that wait for the next round.
    wait_for(lambda: theirs.num_nodes_waiting() > 0)
    future = run.begin(theirs)
    results = [ours.joined()[1:], joined(future)]
    assert sorted(rank for rank, *_ in results) == [0, 1]
    assert {size for _, size, *_ in results} == {2}


def test_closing_holds_for_both(run):
    ours, theirs = run.ours("2:2", FIRST), run.theirs("2:2", SECOND)
    future = run.begin(theirs)
    ours.begin("join")
    ours.joined()
    joined(future)
    theirs.set_closed()
    ours.hears("closed-by-other")
    answer = run.ours("2:2", FIRST).call("join")
    assert answer.startswith("failed") and "is closed" in answer, answer


def test_theirs_respect_what_ours_has_closed(run):
    ours, theirs = run.ours("2:2", FIRST), run.theirs("2:2", SECOND)
    assert ours.call("close") == "closed"
    with pytest.raises(RendezvousClosedError):
        theirs.next_rendezvous()
    wait_for(theirs.is_closed)


def test_a_node_of_ours_that_leaves_makes_room(run):
    ours, other = run.ours("2:2", FIRST), run.ours("2:2", FIRST)
    for node in (ours, other):
        node.begin("join")
    for node in (ours, other):
        node.joined()
    theirs = run.begin(run.theirs("2:2", SECOND))
    assert other.call("leave") == "left"
    ours.hears("membership 0 ")
    ours.begin("join")
    rank, size, *master = ours.joined()[1:]
    assert (rank, size) == (0, 2)
    assert joined(theirs) == (1, 2, *master)
