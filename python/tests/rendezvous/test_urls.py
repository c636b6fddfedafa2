"""Tests of URLs at which workers meet, compared with PyTorch's own handlers.

Both kinds of handlers also meet in one rendezvous.
"""

import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from ports import free_port
from ranks import Program, processes

import rdzv
import rdzv.torch
from rdzv.rendezvous import register_rendezvous_handler, rendezvous

OURS, TORCHS = rendezvous, dist.rendezvous
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def port():
    return free_port()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in (*VARIABLES, "TORCHELASTIC_USE_AGENT_STORE", "RDZV_JOB_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def met(rank, count, functions, url, how):
    """Joins with the implementation of this rank; each reads the others' values."""
    arguments = {}
    if how == "arguments":
        arguments = {"rank": rank, "world_size": count}
    elif how == "query":
        url = f"{url}?rank={rank}&world_size={count}"
    else:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(count))
    store, own, size = next(functions[rank](url, timeout=timedelta(seconds=30), **arguments))
    store.set(f"from {own}", str(os.getpid()))
    others = [bytes(store.get(f"from {other}")).decode() for other in range(count)]
    # Rank 0 may host the store, so it stays until the other ranks have read.
    store.add("read", 1)
    while own == 0 and store.add("read", 0) < count:
        pass
    return own, size, len(set(others))


@pytest.mark.parametrize("functions", [[OURS, OURS], [OURS, TORCHS], [TORCHS, OURS]], ids=["ours", "ours hosts", "torch hosts"])
@pytest.mark.parametrize("how", ["arguments", "query"])
@pytest.mark.parametrize("scheme", ["tcp", "env", "file"])
def test_workers_of_ours_and_of_torch_meet(functions, how, scheme, port, tmp_path, monkeypatch):
    if scheme == "env":
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
    url = {"tcp": f"tcp://127.0.0.1:{port}", "env": "env://", "file": f"file://{tmp_path}/store"}[scheme]
    assert processes(2, met, functions, url, how) == [(0, 2, 2), (1, 2, 2)]


def test_the_environment_says_rank_and_number(port, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(port))
    assert processes(2, met, [OURS, TORCHS], "env://", "environment") == [(0, 2, 2), (1, 2, 2)]


def refused(function, url, **arguments):
    with pytest.raises((ValueError, RuntimeError, AssertionError, TypeError)) as raised:
        next(function(url, **arguments))
    return raised.type, str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "tcp://h?rank=0&world_size=1",
        "tcp://h:1",
        "tcp://h:1?rank=0",
        "tcp://h:1?world_size=1",
        "file://?rank=0&world_size=1",
        "file:///x",
        "file:///x?rank=0",
        "env://",
        "env://?rank=0",
        "env://?rank=0&world_size=1",
        "zeus://",
    ],
)
def test_what_is_missing_has_the_class_and_text_of_torch(url):
    assert refused(OURS, url) == refused(TORCHS, url)


def test_what_torch_answers_otherwise():
    """Differences from torch that `migrating.md` lists."""
    for wrong in ({"rank": 0.5}, {"world_size": "2"}):
        assert refused(TORCHS, "env://", **wrong)[0] is RuntimeError
        assert refused(OURS, "env://", **wrong)[0] is TypeError
    twice = "tcp://h:1?rank=0&world_size=1"
    assert refused(TORCHS, twice, rank=0)[0] is AssertionError
    assert refused(OURS, twice, rank=0) == (ValueError, refused(TORCHS, twice, rank=0)[1])
    # A part of the query without a value.
    with pytest.raises(IndexError):
        next(TORCHS("tcp://h:1?rank"))
    assert "'rank' of the query" in refused(OURS, "tcp://h:1?rank")[1]
    # Only rank 0 would know the port that it gets for 0.
    assert "port 0" in refused(OURS, "tcp://127.0.0.1:0?rank=0&world_size=2")[1]
    # A number below the valid range.
    assert "rank must be from 0" in refused(OURS, "tcp://h:1?rank=-3&world_size=1")[1]
    assert refused(OURS, "env://", rank=-2)[0] is ValueError


def test_a_second_value_is_refused(tmp_path):
    for function in (OURS, TORCHS):
        iterator = function(f"file://{tmp_path}/{function.__module__}?rank=0&world_size=1")
        next(iterator)
        with pytest.raises(RuntimeError, match="Unable to perform rerendezvous using file:// method"):
            next(iterator)


@pytest.mark.parametrize("scheme", ["tcp://h:1", "file:///x", "env://", "rdzv://h:1/job"])
@pytest.mark.parametrize(
    ("query", "arguments", "text"),
    [
        ("rank=2&world_size=2", {}, "ranks are 0 to 1"),
        ("rank=0", {"world_size": 2}, "node-specific"),
        ("rank=0&world_size=2", {"rank": 1}, "node-specific"),
        ("", {"rank": 1, "world_size": 1}, "ranks are 0 to 0"),
        ("rank=0&world_size=0", {}, "world_size is 0"),
        ("rank=0&rank=1&world_size=2", {}, "two values of rank"),
        ("rank=0&world_size=2&world_size=2", {}, "two values of world_size"),
    ],
)
def test_ranks_that_cannot_be_are_refused_before_any_wait(scheme, query, arguments, text):
    with pytest.raises(ValueError, match=text):
        next(rendezvous(f"{scheme}?{query}", timeout=5, **arguments))


def test_a_name_is_registered_once():
    def handler(url, **kwargs):
        yield rdzv.HashStore(), 0, 1

    class Creators:
        def create(self, parameters):
            raise NotImplementedError

    creators, registry = Creators(), rdzv.rendezvous.RendezvousHandlerRegistry()
    for register in (register_rendezvous_handler, dist.register_rendezvous_handler):
        register("once", handler)
        with pytest.raises(RuntimeError, match="Rendezvous handler for once:// already registered"):
            register("once", handler)
    # The same creator is accepted, also as another object that is equal.
    registry.register("own", creators.create)
    registry.register("own", creators.create)
    with pytest.raises(ValueError, match="'own' has another creator"):
        registry.register("own", Creators().create)


def test_a_run_needs_a_name():
    for backend in ("c10d", "etcd", "etcd-v2"):
        parameters = rdzv.rendezvous.RendezvousParameters(backend, "h:1", "", 2, 2)
        with pytest.raises(ValueError, match="run id is empty"):
            rdzv.rendezvous.get_rendezvous_handler(parameters)
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from rdzv.torch.elastic import handler

    with pytest.raises(ValueError, match="run id is empty"):
        handler()(RendezvousParameters("rdzv", "h:1", "", 2, 2))


def test_a_handler_of_ones_own():
    seen = []

    def handler(url, **kwargs):
        seen.append((url, kwargs))
        yield rdzv.HashStore(), 3, 4

    register_rendezvous_handler("mine", handler)
    for scheme in ("mine", "tcp", "rdzv"):
        with pytest.raises(RuntimeError, match=f"Rendezvous handler for {scheme}:// already registered"):
            register_rendezvous_handler(scheme, lambda url: iter(()))
    iterator = rendezvous("mine://x/y?a=b", rank=3, world_size=4, timeout=2.0, color="red")
    assert next(iterator)[1:] == (3, 4)
    assert seen == [("mine://x/y?a=b&rank=3&world_size=4", {"timeout": 2.0, "color": "red"})]
    with pytest.raises(ValueError, match="already"):
        rendezvous("mine://x?rank=1", world_size=4)
    with pytest.raises(TypeError, match="color"):
        rendezvous("tcp://h:1?rank=0&world_size=1", color="red")


def test_control_c_ends_the_wait_for_the_others(port):
    source = f"""
        import os
        from rdzv.rendezvous import rendezvous
        print(os.getpid(), flush=True)
        try:
            next(rendezvous("rdzv://127.0.0.1:{port}/job?world_size=2"))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    with Program(source) as program:
        pid = int(program.line())
        # The program joins in the meantime; an earlier interrupt would be good too.
        time.sleep(0.3)
        os.kill(pid, signal.SIGINT)
        assert program.line() == "interrupted"
        code, _, err = program.end()
        assert code == 0, err


def native(rank, count, url, arguments):
    store, own, size = next(rendezvous(url, timeout=30.0, **arguments[rank]))
    assert isinstance(store, rdzv.TCPStore)
    store.set(f"from {own}", b"")
    store.wait([f"from {other}" for other in range(size)])
    # All ranks have read. The host of the store may end before the other ranks have this answer.
    try:
        store.barrier("read", size)
    except rdzv.StoreError as error:
        assert "was lost" in str(error)
    return own, size


def test_a_native_url_gives_ranks(port):
    arguments = [{"world_size": 3}] * 3
    met = processes(3, native, f"rdzv://127.0.0.1:{port}/job", arguments)
    assert sorted(met) == [(0, 3), (1, 3), (2, 3)]
    url = f"rdzv://127.0.0.1:{port}/job?world_size=2&rank=auto"
    assert sorted(processes(2, native, url, [{}] * 2)) == [(0, 2), (1, 2)]


def test_a_native_url_takes_ranks(port):
    arguments = [{"rank": rank, "world_size": 3} for rank in (2, 0, 1)]
    met = processes(3, native, f"rdzv://127.0.0.1:{port}/job", arguments)
    assert met == [(2, 3), (0, 3), (1, 3)]


def test_a_native_url_names_how_many_workers_have_come(port):
    with pytest.raises(rdzv.rendezvous.RendezvousTimeoutError, match="'job' had 1 of at least 2"):
        next(rendezvous(f"rdzv://127.0.0.1:{port}/job?world_size=2", timeout=1.0))


def collective(rank, count, port, arguments):
    import torch

    dist.init_process_group("gloo", init_method=f"rdzv://127.0.0.1:{port}/job", world_size=count, **arguments[rank])
    seen = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(seen)
    # gloo no longer needs the store once all ranks have joined.
    dist.barrier()
    own = dist.get_rank()
    dist.destroy_process_group()
    return own, seen.item()


def test_init_process_group_of_torch_takes_a_native_url(port):
    met = processes(3, collective, port, [{}] * 3)
    assert sorted(met) == [(0, 3.0), (1, 3.0), (2, 3.0)]
    met = processes(3, collective, port, [{"rank": rank} for rank in (1, 2, 0)])
    assert met == [(1, 3.0), (2, 3.0), (0, 3.0)]


def test_a_native_url_serves_rpc(port):
    from rdzv import rpc

    def worker(rank, count):
        options = rpc.RpcOptions(init_method=f"rdzv://127.0.0.1:{port}/calls")
        rpc.init_rpc(f"w{rank}", world_size=count, rpc_backend_options=options)
        me = rpc.get_worker_info().id
        rpc.shutdown()
        return me

    assert sorted(processes(2, worker)) == [0, 1]


def test_threads_meet_too(port):
    results = []

    def worker():
        results.append(next(rendezvous(f"rdzv://127.0.0.1:{port}/job", world_size=2, timeout=30)))

    threads = [threading.Thread(target=worker) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rank for _, rank, _ in results) == [0, 1]
