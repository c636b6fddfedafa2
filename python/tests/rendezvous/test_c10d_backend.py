"""Tests of `C10dRendezvousBackend`, also together with PyTorch's class."""

import threading
from base64 import b64encode

import pytest
import torch.distributed as dist
from ports import free_port
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as theirs

import rdzv
from rdzv import rendezvous as ours
from rdzv.rendezvous import RendezvousParameters

MODULES = {"ours": ours, "torch": theirs}
KEY = "torch.rendezvous.job"


@pytest.fixture(params=["tcp", "file", "hash", "prefix", "torch"])
def store(request, tmp_path):
    if request.param == "torch":
        yield dist.TCPStore("localhost", 0, is_master=True)
        return
    with rdzv.StoreServer() as server:
        yield {
            "tcp": lambda: rdzv.TCPStore(server.host, server.port),
            "file": lambda: rdzv.FileStore(tmp_path / "store"),
            "hash": rdzv.HashStore,
            "prefix": lambda: rdzv.HashStore().prefix("prefix"),
        }[request.param]()


def test_a_state_is_set_once_and_then_with_its_token(store):
    backend = ours.C10dRendezvousBackend(store, "job")
    assert isinstance(backend, ours.RendezvousBackend) and backend.name == "c10d"
    assert backend.get_state() is None
    state, first, is_new = backend.set_state(b"x")
    assert (state, is_new) == (b"x", True) and backend.get_state() == (b"x", first)
    assert store.get(KEY) == b64encode(b"x")
    # Without the token, with an invalid one, and with an old one, the state stays.
    assert backend.set_state(b"y") == backend.set_state(b"y", "invalid") == (b"x", first, False)
    state, second, is_new = backend.set_state(b"y", first)
    assert (state, is_new) == (b"y", True) and second != first
    assert backend.set_state(b"z", first) == (b"y", second, False)
    # A second backend of the run finds the state.
    assert ours.C10dRendezvousBackend(store, "job").get_state() == (b"y", second)
    assert ours.C10dRendezvousBackend(store, "other").get_state() is None
    assert ours.C10dRendezvousBackend(store, "other").set_state(b"x", "invalid") is None


def test_a_corrupt_state_is_an_error(store):
    backend = ours.C10dRendezvousBackend(store, "job")
    store.set(KEY, "non_base64")
    with pytest.raises(ours.RendezvousStateError, match="corrupt"):
        backend.get_state()


def test_both_classes_participate_in_one_run():
    with rdzv.StoreServer() as server:
        mine = ours.C10dRendezvousBackend(rdzv.TCPStore(server.host, server.port), "job")
        torchs = theirs.C10dRendezvousBackend(dist.TCPStore(server.host, server.port, is_master=False), "job")
        assert mine._key == torchs._key and mine._NULL_SENTINEL == torchs._NULL_SENTINEL
        assert mine.get_state() is None and torchs.get_state() is None

        def count(backend):
            for _ in range(50):
                found = backend.get_state()
                while not (found := backend.set_state(b"%d" % (int(found[0]) + 1 if found else 1), found and found[1]))[2]:
                    pass

        threads = [threading.Thread(target=count, args=(backend,)) for backend in (mine, torchs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        # Equal values of two writers look like a success of both, in both classes.
        assert 50 <= int(mine.get_state()[0]) <= 100 and mine.get_state() == torchs.get_state()


def test_a_store_that_is_gone_is_a_lost_connection():
    server = rdzv.StoreServer()
    backend = ours.C10dRendezvousBackend(rdzv.TCPStore(server.host, server.port), "job")
    server.close()
    for call in (backend.get_state, lambda: backend.set_state(b"x"), lambda: ours.C10dRendezvousBackend(backend._store, "other")):
        with pytest.raises(ours.RendezvousConnectionError, match="connection to the C10d store") as raised:
            call()
        assert isinstance(raised.value.__cause__, rdzv.StoreError)
    with pytest.raises(ValueError, match="non-empty"):
        ours.C10dRendezvousBackend(rdzv.HashStore(), "")


def made(endpoint, library=ours, **options):
    return library.create_backend(RendezvousParameters("c10d", endpoint, "job", 1, 1, **options))


@pytest.mark.parametrize("is_host", [None, "true"])
@pytest.mark.parametrize("other", ["ours", "torch"])
def test_create_backend_hosts_a_store_or_finds_it(is_host, other):
    endpoint = f"localhost:{free_port()}"
    backend, store = made(endpoint, is_host=is_host, store_type=" tCp", read_timeout="10")
    assert store.timeout.total_seconds() == 10 and f"{store.host}:{store.port}" == endpoint
    second, _ = made(endpoint, MODULES[other], is_host="false")
    third, _ = made(endpoint)
    token = second.set_state(b"x")[1]
    assert backend.get_state() == third.get_state() == (b"x", token) and third._server is None


def test_create_backend_takes_files_and_the_default_port(tmp_path, monkeypatch):
    path = tmp_path / "store"
    backend, store = made(str(path), store_type="fIlE")
    assert store.path == str(path)
    theirs_too, _ = made(str(path), theirs, store_type="file")
    assert theirs_too.set_state(b"x")[:2] == backend.get_state()
    assert isinstance(made("", store_type="file")[1], rdzv.FileStore)
    monkeypatch.setattr("rdzv.rendezvous._c10d.DEFAULT_PORT", free_port())
    assert made("localhost")[1].timeout.total_seconds() == 60
    assert made("")[1].host == "localhost"


@pytest.mark.parametrize(
    ("endpoint", "options", "error"),
    [
        (None, {"is_host": "false", "read_timeout": 1}, "Connection"),
        ("no-such-host.invalid:1", {"read_timeout": 1}, "Connection"),
        ("busy", {"is_host": "true"}, "Connection"),
        ("/no/such/folder/file", {"store_type": "file"}, "Connection"),
        (None, {"store_type": "other"}, "ValueError"),
        (None, {"read_timeout": "0"}, "ValueError"),
        (None, {"read_timeout": "-10"}, "ValueError"),
        ("host:port", {}, "ValueError"),
    ],
)
def test_create_backend_refuses_what_cannot_be(endpoint, options, error):
    with rdzv.StoreServer("0.0.0.0") as busy:
        endpoint = f"localhost:{busy.port}" if endpoint == "busy" else endpoint or f"localhost:{free_port()}"
        with pytest.raises(ValueError if error == "ValueError" else ours.RendezvousConnectionError):
            made(endpoint, **options)
