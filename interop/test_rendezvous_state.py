"""Tests that rdzv and PyTorch read each other's rendezvous state."""

import base64
import json
import pickle
import subprocess
from datetime import datetime, timedelta, timezone, UTC

import pytest
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from launching import STATE_CODEC, environment

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
NAMES = (
    "round complete closed deadline participants wait_list redundancy_list last_heartbeats".split()
)


def ours(command, word) -> str:
    done = subprocess.run(
        [STATE_CODEC],
        input=f"{command} {word}\n",
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answer = done.stdout.rstrip("\n")
    assert not answer.startswith("error "), answer
    return answer


def value_of(state) -> str:
    return base64.b64encode(pickle.dumps(state)).decode()


def state_of(value: str) -> _RendezvousState:
    return pickle.loads(base64.b64decode(value))


def micros(time) -> int | None:
    if time is None:
        return None
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


def described(state) -> dict:
    """Returns rdzv's description of a state."""

    def node(desc):
        return [desc.addr, desc.pid, desc.local_id]

    return {
        "round": state.round,
        "complete": state.complete,
        "closed": state.closed,
        "deadline": micros(state.deadline),
        "participants": sorted([node(desc), rank] for desc, rank in state.participants.items()),
        "wait_list": sorted(map(node, state.wait_list)),
        "redundancy_list": sorted(map(node, getattr(state, "redundancy_list", ()))),
        "last_heartbeats": sorted(
            [node(desc), micros(at)] for desc, at in state.last_heartbeats.items()
        ),
    }


def with_nodes(count, **attributes):
    state = _RendezvousState()
    for number in range(count):
        desc = _NodeDesc(f"node-{number:04}.cluster.example.com", 1000 + number, number % 3)
        state.participants[desc] = number
        state.last_heartbeats[desc] = START + timedelta(seconds=number, microseconds=number)
    for name, value in attributes.items():
        setattr(state, name, value)
    return state


def naive(state):
    for desc, at in state.last_heartbeats.items():
        state.last_heartbeats[desc] = at.replace(tzinfo=None)
    return state


STATES = {
    "nothing": with_nodes(0),
    "one": with_nodes(1),
    "last call": with_nodes(2, deadline=START + timedelta(seconds=30)),
    "complete": with_nodes(3, complete=True, round=70_000),
    "waiting": with_nodes(
        2, complete=True, wait_list={_NodeDesc("héte", 1, 0), _NodeDesc("10.0.0.9", 2**20, 1)}
    ),
    "surplus": with_nodes(2, complete=True, redundancy_list={_NodeDesc("x" * 300, 255, 256)}),
    "closed": with_nodes(2, complete=True, closed=True),
    "100 nodes": with_nodes(100, complete=True),
    "1001 nodes": with_nodes(1001),
}


@pytest.mark.parametrize("name", STATES)
def test_what_pytorch_writes_we_read(name):
    state = STATES[name]
    assert json.loads(ours("read", value_of(state))) == described(state)


@pytest.mark.parametrize("name", STATES)
def test_what_we_write_pytorch_reads(name):
    state = STATES[name]
    value = ours("write", json.dumps(described(state)))
    read = state_of(value)
    assert type(read) is _RendezvousState
    assert vars(read) == vars(state)
    assert all(at.tzinfo is UTC for at in read.last_heartbeats.values())
    # All agents write and read the state all the time, so it must not be larger than necessary.
    assert len(value) <= len(value_of(state))


@pytest.mark.parametrize("protocol", [4, 5])
def test_both_protocols_of_python_are_read(protocol):
    state = STATES["100 nodes"]
    value = base64.b64encode(pickle.dumps(state, protocol)).decode()
    assert json.loads(ours("read", value)) == described(state)


def test_the_sentinel_is_no_state():
    assert ours("read", C10dRendezvousBackend._NULL_SENTINEL) == "null"


def test_a_state_goes_back_and_forth_without_a_change():
    value = value_of(STATES["waiting"])
    for _ in range(5):
        value = value_of(state_of(ours("again", value)))
    assert vars(state_of(value)) == vars(STATES["waiting"])


def test_what_older_releases_write_is_read_and_keeps_its_form_of_time():
    state = naive(with_nodes(2, complete=True))
    del state.redundancy_list
    value = value_of(state)
    assert json.loads(ours("read", value)) == described(state)
    read = state_of(ours("again", value))
    assert all(at.tzinfo is None for at in read.last_heartbeats.values())
    # Older releases ignore the list.
    assert vars(read) == {**vars(state), "redundancy_list": set()}


def test_attributes_that_later_releases_add_are_ignored():
    later = {
        "ratio": 0.5,
        "names": ["a", ("b", 2, None, True), b"\x00\xff" * 200],
        "limits": {"soft": -(2**70), 3: {1, 2, 3}},
        "span": timedelta(days=-1, seconds=5, microseconds=7),
        "local": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-5))),
        "leader": _NodeDesc("somewhere", 1, 2),
    }
    state = with_nodes(3, **later)
    object.__setattr__(next(iter(state.participants)), "zone", "north")
    assert json.loads(ours("read", value_of(state))) == described(state)
    assert vars(state_of(ours("again", value_of(state)))) == vars(with_nodes(3))


def test_nothing_but_a_state_is_read():
    class Evil:
        def __reduce__(self):
            return (print, ("called",))

    for value in (Evil(), {"round": 0}, print, _NodeDesc("a", 1, 0), None):
        with pytest.raises(AssertionError, match="error "):
            ours("read", value_of(value))
