"""Tests of rounds with native agents and PyTorch's agents, on rdzv's server.

The server hosts the rendezvous. PyTorch's agents are real handlers of its `c10d` backend. They do not
know the host, but read and write the state under its key. Node names are loopback addresses, so that
their order is known and the node with rank 0 is reachable.
"""

import queue
import subprocess
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from conftest import RdzvServer
from launching import MEMBER, environment

TIMEOUT = 60
CONFIG = {"last_call_timeout": "2"}


@pytest.fixture
def server():
    running = RdzvServer()
    yield running
    running.stop()


@pytest.fixture
def run(server):
    """Creates the agents of one run, and ends the remaining ones."""
    running = Run(server)
    yield running
    running.end()


class Run:
    def __init__(self, server):
        self.endpoint = f"{server.host}:{server.port}"
        self.name = uuid.uuid4().hex
        self.agents = []

    def native(self, address, nodes="1:4"):
        return self._kept(NativeAgent(self.endpoint, self.name, address, nodes))

    def pytorch(self, address, nodes="1:4"):
        return self._kept(PyTorchAgent(self.endpoint, self.name, address, nodes))

    def _kept(self, agent):
        self.agents.append(agent)
        return agent

    def end(self):
        for agent in self.agents:
            agent.end()


class NativeAgent:
    """Agent of rdzv in a separate process: the program `member`."""

    def __init__(self, endpoint, run, address, nodes):
        options = ",".join(f"{name}={value}" for name, value in CONFIG.items()) + ",is_host=0"
        self.process = subprocess.Popen(
            [MEMBER, "c10d", endpoint, run, nodes, options, address],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.changes = []

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self):
        """Returns the next line that is not a change. Changes are queued."""
        while True:
            line = self.lines.get(timeout=TIMEOUT)
            if line.split(" ")[0] in ("membership", "peer-failed", "closed-by-other", "lost"):
                self.changes.append(line)
            else:
                return line

    def change(self):
        return self.changes.pop(0) if self.changes else self.lines.get(timeout=TIMEOUT)

    def begin_join(self):
        self.ask("join")

    def joined(self):
        words = self.answer().split(" ")
        assert words[0] == "joined", words
        return Joined(int(words[1]), int(words[2]), int(words[3]), words[4], int(words[5]))

    def set(self, key, value):
        self.ask(f"set {key} {value}")
        assert self.answer() == "set"

    def get(self, key):
        self.ask(f"get {key}")
        word, _, value = self.answer().partition(" ")
        assert word == "value"
        return value

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        if not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
        self.reader.join(30)
        self.process.stdout.close()


class PyTorchAgent:
    """PyTorch's handler, whose join waits in a thread."""

    def __init__(self, endpoint, run, address, nodes):
        least, most = map(int, nodes.split(":"))
        parameters = RendezvousParameters(
            "c10d", endpoint, run, least, most, local_addr=address, is_host="0", **CONFIG
        )
        backend, store = create_backend(parameters)
        self.handler = create_handler(store, backend, parameters)
        self.threads = ThreadPoolExecutor(1)
        self.joining = None
        self.info = None

    def begin_join(self):
        self.joining = self.threads.submit(self.handler.next_rendezvous)

    def joined(self):
        self.info = self.joining.result(TIMEOUT)
        boot = self.info.bootstrap_store_info
        return Joined(
            self.handler._state_holder.state.round,
            self.info.rank,
            self.info.world_size,
            boot.master_addr,
            boot.master_port,
        )

    def set(self, key, value):
        self.info.store.set(key, value)

    def get(self, key):
        return self.info.store.get(key).decode()

    def await_waiting(self):
        """Polls for waiting nodes, like PyTorch's agent while its workers run."""
        until = time.monotonic() + TIMEOUT
        while self.handler.num_nodes_waiting() == 0:
            assert time.monotonic() < until, "no node waits"
            time.sleep(0.1)

    def await_closed(self):
        until = time.monotonic() + TIMEOUT
        while not self.handler.is_closed():
            assert time.monotonic() < until, "the run is not closed"
            time.sleep(0.1)

    def end(self):
        self.handler._stop_heartbeats()
        self.threads.shutdown(wait=False)


class Joined:
    def __init__(self, round_, rank, world_size, addr, port):
        self.round, self.rank, self.world_size = round_, rank, world_size
        self.master = (addr, port)


def form(*agents):
    """Lets all agents join, and checks that their ranks follow their names."""
    for agent in agents:
        agent.begin_join()
    return formed(*agents)


def formed(*agents):
    joined = [agent.joined() for agent in agents]
    assert [one.rank for one in joined] == list(range(len(agents)))
    assert {one.world_size for one in joined} == {len(agents)}
    assert len({one.round for one in joined}) == 1, [one.round for one in joined]
    assert len({one.master for one in joined}) == 1, [one.master for one in joined]
    return joined[0]


def exchange(one, other):
    """Checks that both agents use the same store of the round."""
    one.set("of-one", "1")
    assert other.get("of-one") == "1"
    other.set("of-other", "2")
    assert one.get("of-other") == "2"


@pytest.mark.parametrize("first", ["torchrun", "native"])
def test_one_of_each_form_a_round_in_either_order_of_ranks(run, first):
    make = {"torchrun": run.pytorch, "native": run.native}
    second = "native" if first == "torchrun" else "torchrun"
    agents = [make[first]("127.0.0.2", "2:2"), make[second]("127.0.0.3", "2:2")]
    round_ = form(*agents)
    assert round_.round == 0
    assert round_.master[0] == "127.0.0.2"
    exchange(*agents)


def test_four_agents_of_both_kinds_form_a_round(run):
    agents = [
        run.pytorch("127.0.0.2", "4:4"),
        run.native("127.0.0.3", "4:4"),
        run.pytorch("127.0.0.4", "4:4"),
        run.native("127.0.0.5", "4:4"),
    ]
    form(*agents)
    exchange(agents[0], agents[3])


def test_a_native_agent_dies_and_another_comes(run):
    first, pytorch, third = (
        run.native("127.0.0.2", "1:3"),
        run.pytorch("127.0.0.3", "1:3"),
        run.native("127.0.0.4", "1:3"),
    )
    before = form(first, pytorch, third)
    third.kill()
    # Only the host detects broken connections.
    change = first.change()
    assert "127.0.0.4" in change and "its connection closed" in change
    first.begin_join()
    pytorch.await_waiting()
    pytorch.begin_join()
    after = formed(first, pytorch)
    assert after.round == before.round + 1
    # The leader is the same as before, and PyTorch's agents keep its address.
    assert after.master == before.master
    fourth = run.native("127.0.0.5", "1:3")
    fourth.begin_join()
    assert "127.0.0.5" in first.change()
    first.begin_join()
    pytorch.await_waiting()
    pytorch.begin_join()
    again = formed(first, pytorch, fourth)
    assert again.master == before.master


def test_a_stock_leader_that_says_nothing_again_is_found_where_it_was(run):
    leader, native = run.pytorch("127.0.0.2", "2:3"), run.native("127.0.0.3", "2:3")
    before = form(leader, native)
    # The native agent restarts its workers.
    native.begin_join()
    leader.await_waiting()
    leader.begin_join()
    joined = leader.joined()
    # The next step of PyTorch's agent.
    leader.set("torchelastic/role_info/0", "{}")
    after = native.joined()
    assert (joined.rank, after.rank, after.round) == (0, 1, before.round + 1)
    assert after.master == joined.master == before.master


def test_a_stock_agent_joins_native_ones(run):
    natives = [run.native("127.0.0.2", "2:3"), run.native("127.0.0.3", "2:3")]
    form(*natives)
    pytorch = run.pytorch("127.0.0.4", "2:3")
    pytorch.begin_join()
    for native in natives:
        assert "127.0.0.4" in native.change()
        native.begin_join()
    formed(*natives, pytorch)
    exchange(natives[1], pytorch)


def test_a_run_closed_by_either_is_over_for_both(run):
    native, pytorch = run.native("127.0.0.2", "2:2"), run.pytorch("127.0.0.3", "2:2")
    form(native, pytorch)
    pytorch.handler.set_closed()
    assert native.change() == "closed-by-other"


def test_a_run_closed_by_a_native_agent_is_closed_for_a_stock_one(run):
    native, pytorch = run.native("127.0.0.2", "2:2"), run.pytorch("127.0.0.3", "2:2")
    form(native, pytorch)
    native.ask("close")
    assert native.answer() == "closed"
    pytorch.await_closed()


def test_native_agents_stay_alive_in_the_eyes_of_stock_ones(run):
    native, pytorch = run.native("127.0.0.2", "2:2"), run.pytorch("127.0.0.3", "2:2")
    form(native, pytorch)
    # Longer than the time after which a silent node is lost.
    until = time.monotonic() + 18
    while time.monotonic() < until:
        assert pytorch.handler.num_nodes_waiting() == 0
        time.sleep(1)
    nodes = [node.addr for node in pytorch.handler._state_holder.state.participants]
    assert sorted(nodes) == ["127.0.0.2", "127.0.0.3"]
