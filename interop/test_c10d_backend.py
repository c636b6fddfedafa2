"""Tests of the `c10d` backend against PyTorch: state, tokens, events, errors."""

import logging
import os
import re
import uuid

import pytest
from torch.distributed import FileStore
from torch.distributed.elastic.events import handlers
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (
    C10dRendezvousBackend,
    create_backend,
)

import launching
from conftest import connect
from our_node import OurNode
from our_store import OurStore, StoreError, decode, encode

# Tokens for writes. A write with an outdated token fails and returns the stored state.
NO_TOKEN, THE_FIRST, THE_LAST, NEVER_GIVEN = "no token", "the first", "the last", "never given"
TURNS = {
    "first write": [(b"a", NO_TOKEN)],
    "latest token": [(b"a", NO_TOKEN), (b"b", THE_LAST), (b"c", THE_LAST)],
    "no token though there is a state": [(b"a", NO_TOKEN), (b"b", NO_TOKEN)],
    "token though there is no state": [(b"a", NEVER_GIVEN)],
    "unknown token": [(b"a", NO_TOKEN), (b"b", NEVER_GIVEN)],
    "stale token": [(b"a", NO_TOKEN), (b"b", THE_LAST), (b"c", THE_FIRST)],
    "after a lost race": [(b"a", NO_TOKEN), (b"b", THE_LAST), (b"c", THE_FIRST), (b"c", THE_LAST)],
    "equal states": [(b"a", NO_TOKEN), (b"a", NEVER_GIVEN), (b"a", NO_TOKEN)],
    "large state": [(bytes(range(256)) * 400, NO_TOKEN), (b"a", THE_LAST)],
}


class Ours:
    """State of rdzv, with the methods of PyTorch's backend."""

    def __init__(self, store, run_id):
        self.store, self.run_id = store, run_id

    def get_state(self):
        answer = self.store.call("get_state", self.run_id)
        return None if answer == "none" else tuple(map(decode, answer.split()))

    def set_state(self, state, token=None):
        words = ("set_state", self.run_id, encode(state), encode(token or b""))
        answer = self.store.call(*words)
        if answer == "none":
            return None
        state, token, won = answer.split()
        return decode(state), decode(token), won == "true"


def take(backend, turns):
    """Returns the results of these writes, and of a read before and after."""
    seen = [backend.get_state()]
    tokens = []
    for state, which in turns:
        given = {NO_TOKEN: None, NEVER_GIVEN: b"bmV2ZXI="}
        token = given[which] if which in given else tokens[0 if which == THE_FIRST else -1]
        result = backend.set_state(state, token)
        if result is not None:
            tokens.append(result[1])
        seen.append(result)
    return [*seen, backend.get_state()]


@pytest.mark.parametrize("turns", TURNS.values(), ids=TURNS.keys())
def test_writes_end_as_with_pytorch(server, turns):
    expected = take(C10dRendezvousBackend(connect(server), "theirs"), turns)
    with OurStore.connected(server, "--no-wait") as store:
        assert take(Ours(store, "ours"), turns) == expected
    # The store contains the same state for both.
    client = connect(server)
    values = [client.get(f"torch.rendezvous.{run_id}") for run_id in ("theirs", "ours")]
    assert values[0] == values[1]


@pytest.mark.parametrize("turns", TURNS.values(), ids=TURNS.keys())
def test_writes_to_a_file_end_as_with_pytorch(tmp_path, turns):
    path = str(tmp_path / "store")
    expected = take(C10dRendezvousBackend(FileStore(path), "theirs"), turns)
    with OurStore(f"file://{path}") as store:
        assert take(Ours(store, "ours"), turns) == expected


def test_both_take_turns_in_one_run(server):
    theirs = C10dRendezvousBackend(connect(server), "run")
    with OurStore.connected(server, "--no-wait") as store:
        ours = Ours(store, "run")
        token = None
        for state in (b"a", b"b", b"c"):
            for writer, reader in ((theirs, ours), (ours, theirs)):
                written = writer.set_state(state + reader.__class__.__name__.encode(), token)
                assert written[2]
                assert reader.get_state() == written[:2]
                token = written[1]


def test_an_empty_value_is_none(server):
    """Intended difference: an empty value is no state, as for new nodes."""
    theirs = C10dRendezvousBackend(connect(server), "run")
    connect(server).set("torch.rendezvous.run", "")
    assert theirs.get_state() == (b"", b"")
    with OurStore.connected(server, "--no-wait") as store:
        assert Ours(store, "run").get_state() is None
    assert theirs.get_state() is None


def test_a_key_that_vanishes_is_set_again(server):
    """Intended difference: PyTorch loses its later writes and blocks its reads."""
    theirs = C10dRendezvousBackend(connect(server), "theirs")
    _, token, _ = theirs.set_state(b"a")
    client = connect(server)
    client.delete_key("torch.rendezvous.theirs")
    assert theirs.set_state(b"b", token) == (b"a", token, False)
    with OurStore.connected(server, "--no-wait") as store:
        ours = Ours(store, "ours")
        _, token, _ = ours.set_state(b"a")
        client.delete_key("torch.rendezvous.ours")
        assert ours.set_state(b"b", token) is None
        assert ours.get_state() is None


@pytest.mark.parametrize("value", ["a", "YQ=", "YWJj=", "a b=", "=", "YQ==YQ"])
def test_a_value_that_is_no_state_has_the_same_class_of_error(server, value):
    theirs = C10dRendezvousBackend(connect(server), "run")
    connect(server).set("torch.rendezvous.run", value)
    try:
        expected = theirs.get_state()
    except Exception as error:
        expected = type(error).__name__
    with OurStore.connected(server, "--no-wait") as store:
        try:
            found = Ours(store, "run").get_state()
        except StoreError as error:
            found = str(error).partition(":")[0]
    assert found == expected


def created(endpoint, **config):
    """Returns class and text of PyTorch's error for a configuration, or nothing."""
    parameters = RendezvousParameters("c10d", endpoint, uuid.uuid4().hex, 1, 2, **config)
    try:
        create_backend(parameters)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def ours_created(endpoint, **config):
    """Returns the same for rdzv."""
    conf = ",".join(f"{key}={value}" for key, value in {**config, "last_call_timeout": 1}.items())
    finished = launching.rdzv_run(
        *("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-id", uuid.uuid4().hex),
        *("--rdzv-endpoint", endpoint, "--rdzv-conf", conf, "--no-python", "true"),
    )
    if finished.code == 0:
        return None
    lines = finished.stderr.splitlines()
    named = [re.search(r"\b(\w+Error): (.*)", line) for line in lines]
    named = [found.groups() for found in named if found]
    return named[0] if named else ("", finished.stderr)


@pytest.mark.parametrize("timeout", ["0", "-1", "x"])
@pytest.mark.parametrize("store_type", ["tcp", "file"])
def test_the_read_timeout_is_read_for_tcp_stores(tmp_path, store_type, timeout):
    def endpoint(name):
        if store_type == "file":
            return str(tmp_path / name)
        return f"localhost:{launching.free_port()}"

    config = {"store_type": store_type, "read_timeout": timeout}
    theirs = created(endpoint("theirs"), **config)
    ours = ours_created(endpoint("ours"), **config)
    assert (ours is None) == (theirs is None), (ours, theirs)
    if theirs:
        assert theirs[1] in ours[1]


@pytest.mark.parametrize("path", ["nowhere/store", "."])
def test_a_file_that_cannot_be_opened_is_a_connection_error(tmp_path, path):
    # PyTorch opens the file at the first use, which is in the constructor.
    theirs = created(str(tmp_path / path), store_type="file") if path == "." else None
    ours = ours_created(str(tmp_path / path), store_type="file")
    assert ours[0] == "RendezvousConnectionError", ours
    if theirs:
        assert theirs[0] == ours[0]


def test_a_state_that_cannot_be_read_is_a_state_error(tmp_path):
    path = str(tmp_path / "store")
    FileStore(path).set("torch.rendezvous.run", "YQ==")
    finished = launching.rdzv_run(
        *("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-id", "run"),
        *("--rdzv-endpoint", path, "--rdzv-conf", "store_type=file", "--no-python", "true"),
    )
    assert finished.code == 1
    assert "RendezvousStateError: the state of run 'run' is corrupt" in finished.stderr


class Events(logging.Handler):
    """Lines of PyTorch's log, such as its rendezvous events."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.mark.parametrize("is_host", ["1", None])
def test_who_hosts_the_store_is_said_as_by_pytorch(monkeypatch, tmp_path, is_host):
    config = {} if is_host is None else {"is_host": is_host}
    events, lines = Events(), Events()
    monkeypatch.setitem(handlers._log_handlers, "dynamic_rendezvous", events)
    monkeypatch.setattr("torch.distributed.elastic.events._events_loggers", {})
    logger = logging.getLogger(create_backend.__module__)
    monkeypatch.setattr(logger, "disabled", False)
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    assert created(f"localhost:{launching.free_port()}", **config) is None
    logger.removeHandler(lines)
    text = f"Process {os.getpid()} hosts the TCP store for the C10d rendezvous backend."
    assert lines.lines == [text]
    (event,) = events.lines
    assert text in event and '"INIT"' in event

    conf = ",".join(["last_call_timeout=0", *(f"{key}={value}" for key, value in config.items())])
    finished = launching.rdzv_run(
        *("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-id", "run"),
        *("--rdzv-endpoint", f"localhost:{launching.free_port()}", "--rdzv-conf", conf),
        *("--events-file", tmp_path / "events", "--no-python", "true"),
        env={"LOGLEVEL": "INFO"},
    )
    assert finished.code == 0, finished.all
    said = r"Process \d+ hosts the TCP store for the C10d rendezvous backend\."
    assert re.search(said, finished.stderr), finished.all
    recorded = (tmp_path / "events").read_text().splitlines()
    (event,) = [line for line in recorded if re.search(said, line)]
    assert '"INIT"' in event


def test_a_new_file_is_private_as_with_pytorch(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    parameters = RendezvousParameters("c10d", "", "run", 1, 2, store_type="file")
    backend, _ = create_backend(parameters)
    (theirs,) = tmp_path.iterdir()
    assert theirs.stat().st_mode & 0o777 == 0o600
    del backend
    node = OurNode("c10d", "", "run", "1:2", "store_type=file,last_call_timeout=0", "127.0.0.1")
    try:
        node.begin("join")
        node.joined()
        (ours,) = set(tmp_path.iterdir()) - {theirs}
        assert ours.stat().st_mode & 0o777 == 0o600
    finally:
        node.close()
