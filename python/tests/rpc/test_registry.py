"""Tests of the registry of backends."""

import pickle

import pytest

import rdzv
from rdzv import rpc
from rdzv.rpc.backend_registry import (
    BackendType,
    backend_registered,
    construct_rpc_backend_options,
    init_backend,
    register_backend,
)


def test_members_do_not_go_stale():
    first = register_backend("FIRST", lambda rpc_timeout, init_method, **kwargs: (rpc_timeout, init_method, kwargs), dict)
    before = BackendType.RDZV
    register_backend("SECOND", dict, dict)
    assert before is BackendType.RDZV and first is BackendType["FIRST"] and isinstance(first, BackendType)
    names = [member.name for member in BackendType]
    assert names.index("SECOND") < names.index("FIRST") < names.index("RDZV") < names.index("TENSORPIPE")
    assert len(BackendType) == len(names) == len(BackendType.__members__) and first in BackendType
    assert repr(first) == "BackendType.FIRST" and pickle.loads(pickle.dumps(first)) is first
    assert {first: 1}[BackendType.FIRST] == 1
    assert construct_rpc_backend_options(first) == (60.0, "env://", {})
    assert construct_rpc_backend_options(first, 1.0, "tcp://x", a=1) == (1.0, "tcp://x", {"a": 1})
    assert init_backend(first, a=1) == {"a": 1}
    with pytest.raises(RuntimeError, match="^RPC backend FIRST: already registered$"):
        register_backend("FIRST", dict, dict)
    assert backend_registered("FIRST") and not backend_registered("first")
    with pytest.raises(AttributeError, match="does not exist"):
        BackendType.THIRD
    with pytest.raises(TypeError):
        construct_rpc_backend_options(BackendType.RDZV, num_threads=3)


def test_an_agent_of_ones_own_make():
    class Options:
        pass

    class Mine(rpc.Agent):
        def __init__(self, **arguments):
            self.arguments, self.calls = arguments, []

        def get_worker_info(self, name_or_id=None):
            return rpc.WorkerInfo(str(name_or_id or self.arguments["name"]), 0)

        def get_worker_infos(self):
            return [self.get_worker_info()]

        def send(self, to, message, timeout):
            func, args, kwargs = message
            future = rpc.Future()
            future.set_result(func(*args, **kwargs))
            return future

        def start(self):
            self.calls.append("start")

        def join(self, shutdown=False, timeout=0):
            self.calls.append("join")

        def sync(self): ...

        def shutdown(self):
            self.calls.append("shutdown")

        def get_metrics(self):
            return {}

        def get_debug_info(self):
            return {}

    made = []
    register_backend("MINE", lambda *args, **kwargs: Options(), lambda **kwargs: made.append(Mine(**kwargs)) or made[-1])
    store = rdzv.HashStore()
    with pytest.warns(UserWarning, match="MINE was chosen"):
        rpc.init_rpc("w0", rank=3, world_size=2, rpc_backend_options=Options(), store=store)
    assert made[0].arguments["rank"] == 3 and made[0].arguments["store"] is store
    assert rpc.rpc_sync("w1", pow, args=(2, 3)) == 8
    rpc.shutdown()
    assert made[0].calls == ["start", "join", "shutdown"]
    register_backend("BROKEN", lambda *args, **kwargs: {}, lambda **kwargs: object())
    with pytest.raises(TypeError, match="get_worker_info"):
        rpc.init_rpc("w0", backend=BackendType.BROKEN)
    with pytest.raises(RuntimeError, match="has not been initialized"):
        rpc.shutdown()


def test_tensorpipe_is_another_name():
    with rdzv.StoreServer() as server:
        store = rdzv.TCPStore(server.host, server.port)
        rpc.init_rpc("w0", backend=BackendType.TENSORPIPE, rank=0, world_size=1, store=store)
        rpc.shutdown()


def test_tensorpipe_drops_options_that_it_does_not_know():
    with pytest.warns(UserWarning, match="_transports, num_send_recv_threads$") as warned:
        options = construct_rpc_backend_options(
            BackendType.TENSORPIPE, 5.0, num_worker_threads=4, _transports=["uv"], _channels=None, num_send_recv_threads=8
        )
    assert len(warned) == 1
    assert (options.num_worker_threads, options.rpc_timeout) == (4, 5.0)
