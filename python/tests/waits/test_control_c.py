"""Test that Ctrl-C ends every blocking call, and that no other signal does.

The names come from the package. A new name belongs either in `CALLS`, with a call that blocks, or in
`INSTANT`.
"""

import asyncio
import fcntl
import importlib
import inspect
import math
import multiprocessing
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy
import pytest
from ports import free_port

import rdzv
from rdzv import rendezvous, rpc

# Documented limit, and time in which a call that cannot be interrupted counts as such.
LIMIT, HOPELESS = 0.2, 5.0
# Modules that only torch uses. Their names are those of torch, and torch calls them.
OF_TORCH = ("rdzv.torch.backend", "rdzv.torch.rpc")

INSTANT = """
find_rdzv_bin premul_sum resilient Job.atomic Job.regroup Job.step torch.abort
Group.close Store.aget Store.aqueue_pop Store.await_keys Store.close Store.of Store.prefix Store.set_timeout
StoreServer.close StoreServer.fileno Work.add_done_callback Work.done TCPStore.__new__ HashStore.__new__
FileStore.__new__ PrefixStore.__new__ Store.has_extended_api
rendezvous.C10dRendezvousBackend.name rendezvous.create_backend
rendezvous.NativeRendezvousHandler.get_backend rendezvous.NativeRendezvousHandler.get_run_id
rendezvous.RendezvousBackend.get_state rendezvous.RendezvousBackend.set_state
rendezvous.RendezvousHandler.get_backend rendezvous.RendezvousHandler.get_run_id
rendezvous.RendezvousHandler.is_closed rendezvous.RendezvousHandler.next_rendezvous
rendezvous.RendezvousHandler.num_nodes_waiting rendezvous.RendezvousHandler.set_closed
rendezvous.RendezvousHandler.shutdown
rendezvous.RendezvousHandlerRegistry.create_handler rendezvous.RendezvousHandlerRegistry.register
rendezvous.RendezvousParameters.get rendezvous.RendezvousParameters.get_as_bool
rendezvous.RendezvousParameters.get_as_int rendezvous.get_rendezvous_handler
rendezvous.register_rendezvous_handler
elastic.ElasticAgent.get_worker_group elastic.ElasticAgent.run elastic.ErrorHandler.initialize
elastic.ErrorHandler.record_exception elastic.ErrorHandler.record_failure
elastic.LocalElasticAgent.get_worker_group elastic.ProcessFailure.signal_name
elastic.ProcessFailure.timestamp_isoformat elastic.RunResult.exceptions elastic.RunResult.is_failed
elastic.SimpleElasticAgent.get_worker_group elastic.Std.from_str elastic.WorkerSpec.get_entrypoint_name
elastic.WorkerState.is_running elastic.record
rpc.Agent.get_debug_info rpc.Agent.get_metrics rpc.Agent.get_worker_info rpc.Agent.get_worker_infos
rpc.Agent.join rpc.Agent.send rpc.Agent.shutdown rpc.Agent.start rpc.Agent.sync rpc.Arena.empty
rpc.Future.add_done_callback rpc.Future.cancel rpc.Future.done rpc.Future.future rpc.Future.set_exception
rpc.Future.set_result rpc.Future.then rpc.Future.value
rpc.RRef.confirmed_by_owner rpc.RRef.is_owner rpc.RRef.local_value rpc.RRef.owner rpc.RRef.owner_name
rpc.RRef.remote rpc.RRef.rpc_async rpc.RRef.rpc_sync rpc.call rpc.caller rpc.function rpc.get_rpc_timeout
rpc.get_worker_info rpc.is_cancelled rpc.remote rpc.rpc_async rpc.set_rpc_timeout
rpc.backend_registry.backend_registered rpc.backend_registry.construct_rpc_backend_options
rpc.backend_registry.init_backend rpc.backend_registry.register_backend
rpc.backend_registry.check_agent rpc.backend_registry.is_member
rpc.functions.async_execution
worker.group_rank worker.is_worker worker.local_rank worker.local_world_size worker.rank worker.report_error
worker.restart_count worker.role_rank worker.run_id worker.world_size
torch.store torch.elastic.create torch.elastic.handler
torchelastic.agent.server.api.WorkerGroupFailureException.get_worker_exceptions
torchelastic.agent.server.api.WorkerState.is_running
torchelastic.rendezvous.RendezvousHandler.next_rendezvous torchelastic.rendezvous.RendezvousHandler.shutdown
torch.PyStore.deleteKey torch.PyStore.getNumKeys torch.PyStore.has_extended_api
torch.elastic.RdzvRendezvousHandler.get_backend torch.elastic.RdzvRendezvousHandler.get_run_id
torch.elastic.RdzvRendezvousHandler.num_nodes_waiting
""".split()

# Calls that first stop the processes that they have started: `launch/test_endings.py`.
STOPPING = "launch elastic.elastic_launch.__call__ elastic.launch_agent elastic.LocalElasticAgent.run testing.run_workers".split()


def modules():
    yield rdzv
    for found in pkgutil.walk_packages(rdzv.__path__, "rdzv."):
        private = any(part.startswith("_") for part in found.name.split("."))
        if not private and found.name not in OF_TORCH:
            yield importlib.import_module(found.name)


def callables():
    """Names of all public functions and methods, without `rdzv.`."""
    names = set()
    for module in modules():
        public = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
        ]
        for name in public:
            value = getattr(module, name)
            home = getattr(value, "__module__", "") or ""
            where = module.__name__ if "._" in home or not home.startswith("rdzv") else home
            prefix = ".".join([*where.split(".")[1:], ""])
            if not inspect.isclass(value):
                if callable(value) and not name.startswith("_"):
                    names.add(f"{prefix}{name}")
            elif not issubclass(value, BaseException):
                for method, function in vars(value).items():
                    if callable(getattr(value, method)) and (not method.startswith("_") or method == "__call__"):
                        names.add(f"{prefix}{value.__name__}.{method}")
    return names


CALLS = {}


def blocks(*names):
    def add(make):
        for name in names:
            CALLS[name] = lambda make=make, name=name: make(name.rpartition(".")[2])
        return make

    return add


@blocks("Store.get", "Store.wait", "Store.queue_pop", "Store.barrier", "PrefixStore.get", "HashStore.get")
def a_key_that_nobody_sets(method, store=None):
    arguments = {"get": ("key",), "wait": (["key"],), "queue_pop": ("key",), "barrier": ("key", 2)}[method]
    server = rdzv.StoreServer()
    store = store or rdzv.TCPStore(server.host, server.port)
    return lambda: (getattr(store, method)(*arguments), server)


CALLS["HashStore.get"] = lambda: a_key_that_nobody_sets("get", rdzv.HashStore())
CALLS["PrefixStore.get"] = lambda: a_key_that_nobody_sets("get", rdzv.HashStore().prefix("prefix"))


@blocks("Store.set", "Store.add", "Store.append", "Store.check", "Store.compare_set", "Store.delete_key")
@blocks("Store.num_keys", "Store.list_keys", "Store.queue_len", "Store.multi_get", "Store.multi_set", "Store.queue_push", "Store.clone")
def a_server_that_is_stopped(method):
    value = "v" * (1 << 20)
    key = {"add": ("key", 1), "append": ("key", value), "check": (["key"],), "compare_set": ("key", "a", value)}
    key |= {"multi_get": (["key"],), "multi_set": (["key"], [value]), "set": ("key", value), "queue_push": ("key", value)}
    key |= {"delete_key": ("key",), "queue_len": ("key",)}
    source = "import rdzv, time\nserver = rdzv.StoreServer()\nprint(server.port, flush=True)\ntime.sleep(60)"
    server = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    store = rdzv.TCPStore("127.0.0.1", int(server.stdout.readline()))
    server.send_signal(signal.SIGSTOP)

    def call():
        try:
            # Some writes return before the server has answered, until the connection is full.
            while True:
                getattr(store, method)(*key.get(method, ()))
        finally:
            server.kill()

    return call


@blocks("FileStore.wait", "FileStore.set")
def a_file(method):
    path = f"/tmp/rdzv-control-c-{os.getpid()}"
    store = rdzv.FileStore(path)
    if method == "wait":
        return lambda: store.wait(["key"])
    # Another process has the lock.
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    return lambda: store.set("key", "value")


@blocks("TCPStore")
def an_endpoint_without_a_server(_):
    port = free_port()
    return lambda: rdzv.TCPStore("127.0.0.1", port)


@blocks("TCPStore silent")
def a_server_that_says_nothing(_):
    listener = socket.create_server(("127.0.0.1", 0))
    return lambda: rdzv.TCPStore("127.0.0.1", listener.getsockname()[1])


@blocks("TCPStore unreachable", "TCPStore token")
def a_host_that_answers_nothing(which):
    if "token" in which:
        listener = socket.create_server(("127.0.0.1", 0))
        return lambda: rdzv.TCPStore("127.0.0.1", listener.getsockname()[1], token="x" * 32)
    # With a full queue of connections, the system drops the first packet of each new one.
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    full = [socket.socket() for _ in range(4)]
    for waiting in full:
        waiting.setblocking(False)
        waiting.connect_ex(listener.getsockname())
    return lambda: (rdzv.TCPStore("127.0.0.1", listener.getsockname()[1]), full)


@blocks("asyncio Store.aget", "asyncio Store.await_keys", "asyncio Store.aqueue_pop")
def a_coroutine(name):
    store = rdzv.HashStore()
    wait = getattr(store, name.split(".")[-1])
    argument = ["key"] if name.endswith("keys") else "key"
    return lambda: asyncio.run(forward(wait, argument))


async def forward(wait, argument):
    await wait(argument)


@blocks("Group")
def a_member_that_does_not_come(_):
    return lambda: rdzv.Group(rdzv.HashStore(), 0, 2, timeout=60.0)


def group_of_two():
    store = rdzv.HashStore()
    threading.Thread(target=lambda: rest.append(rdzv.Group(store, 1, 2, timeout=60.0)), daemon=True).start()
    return rdzv.Group(store, 0, 2, timeout=60.0)


rest = []


@blocks(*(f"Group.{name}" for name in "all_reduce reduce broadcast all_gather reduce_scatter all_to_all".split()))
@blocks(*(f"Group.{name}" for name in "gather scatter send recv barrier monitored_barrier rebuild".split()))
@blocks("Group.all_gather_objects", "Group.broadcast_object")
def a_member_that_does_not_take_part(name):
    one, two = numpy.zeros(2), numpy.zeros(4)
    group = group_of_two()
    large = numpy.zeros(1 << 24)
    arguments = {
        "all_reduce": (one,),
        "reduce": (one, 0),
        "broadcast": (one, 1),
        "all_gather": (two, one),
        "reduce_scatter": (one, two),
        "all_to_all": (one, one.copy()),
        "gather": (two, one, 0),
        "scatter": (one, None, 1),
        "send": (large, 1),
        "recv": (one, 1),
        "all_gather_objects": (1,),
        "broadcast_object": (None, 1),
        "rebuild": (rdzv.HashStore(),),
    }
    return lambda: getattr(group, name)(*arguments.get(name, ()))


@blocks("Work.wait")
def an_operation_that_does_not_end(_):
    group = group_of_two()
    work = group.barrier(async_=True)
    return lambda: (work.wait(), group)


@blocks("rendezvous.rendezvous tcp 0", "rendezvous.rendezvous tcp 1", "rendezvous.rendezvous env 1", "rendezvous.rendezvous rdzv 0")
@blocks("rendezvous.rendezvous env 0")
def workers_that_do_not_come(how):
    _, scheme, rank = how.split()
    port = free_port()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=rank, WORLD_SIZE="2")
    url = {"tcp": f"tcp://127.0.0.1:{port}?rank={rank}&world_size=2", "env": "env://"}
    url["rdzv"] = f"rdzv://127.0.0.1:{port}/job?world_size=2"

    def call():
        # Rank 0 hosts the store, and does not wait for the others.
        store, *_ = next(rendezvous.rendezvous(url[scheme]))
        store.get("key")

    return call


@blocks("rpc.init_rpc 0", "rpc.init_rpc 1", "rpc.init_rpc store")
def workers_of_calls_that_do_not_come(how):
    rank = how.split()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    if rank == "store":
        return lambda: rpc.init_rpc("w", rank=1, world_size=2, store=rdzv.HashStore())
    return lambda: rpc.init_rpc(f"w{rank}", rank=int(rank), world_size=2)


def alone():
    rpc.init_rpc("w0", rank=0, world_size=1, store=rdzv.HashStore())


@rpc.function(name="tests.wait_forever")
def wait_forever():
    threading.Event().wait()


@blocks("rpc.rpc_sync", "rpc.RRef.to_here", "rpc.Future.wait", "rpc.Future.exception", "rpc.shutdown")
def a_call_that_does_not_end(which):
    if which.endswith("exception") or which == "wait":
        future = rpc.Future()
        return getattr(future, which)
    alone()
    if which == "rpc_sync":
        return lambda: rpc.rpc_sync("w0", wait_forever, timeout=math.inf)
    if which == "to_here":
        reference = rpc.remote("w0", wait_forever, timeout=math.inf)
        return lambda: reference.to_here(timeout=math.inf)
    future = rpc.rpc_async("w0", wait_forever, timeout=math.inf)
    return lambda: (rpc.shutdown(), future)


@blocks("elastic.SimpleElasticAgent.run")
def an_agent_that_waits_for_others(_):
    from elastic.test_agent import Threads, handler, spec

    return Threads(spec(rdzv_handler=handler("127.0.0.1:0", nodes=2)), None).run


@blocks("worker.store")
def a_store_that_is_gone(_):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    return rdzv.worker.store


@blocks("worker.heartbeat", "worker.step")
def a_pipe_that_nobody_reads(method):
    path = f"/tmp/rdzv-control-c-{os.getpid()}"
    os.mkfifo(path)
    os.environ["RDZV_HEARTBEAT"] = path
    return lambda: getattr(rdzv.worker, method)(1)


@blocks("torch.PyStore.get", "torch.PyStore.wait", "torch.PyStore.queue_pop", "torch.PyStore.multi_get")
def a_key_of_torch(method):
    import rdzv.torch

    store = rdzv.torch.PyStore(rdzv.HashStore())
    return lambda: getattr(store, method)(["key"] if method in ("wait", "multi_get") else "key")


@blocks("torch.elastic.RdzvRendezvousHandler.next_rendezvous")
def agents_of_torch_that_do_not_come(_):
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from rdzv.torch.elastic import RdzvRendezvousHandler

    parameters = RendezvousParameters("rdzv", f"127.0.0.1:{free_port()}", "job", 2, 2)
    return RdzvRendezvousHandler(parameters).next_rendezvous


# Each of these is one call of a method of the tables above.
DERIVED = dict.fromkeys(("Job.exchange", "Job.init_process_group", "torch.broadcast_state"), "Store.wait") | {f"torch.PyStore.{name}": f"Store.{name}" for name in (
    "add", "append", "check", "clone", "compare_set", "delete_key", "list_keys", "multi_set", "num_keys", "queue_len", "queue_push", "set"
)} | {f"torch.elastic.RdzvRendezvousHandler.{name}": "torch.elastic.RdzvRendezvousHandler.next_rendezvous" for name in (
    "is_closed", "set_closed", "shutdown"
)} | {f"rendezvous.NativeRendezvousHandler.{name}": "torch.elastic.RdzvRendezvousHandler.next_rendezvous" for name in (
    "is_closed", "next_rendezvous", "num_nodes_waiting", "set_closed", "shutdown"
)} | {"torchelastic.agent.server.api.SimpleElasticAgent.run": "elastic.SimpleElasticAgent.run"} | {"rendezvous.rendezvous": "rendezvous.rendezvous tcp 1", "rpc.init_rpc": "rpc.init_rpc 1"} | {
    f"rendezvous.C10dRendezvousBackend.{name}": "Store.get" for name in ("get_state", "set_state")
}


def test_every_name_of_the_package_is_known_here():
    known = {*CALLS, *INSTANT, *STOPPING, *DERIVED}
    assert sorted(callables() - known) == []
    assert {name for name in DERIVED.values() if name not in CALLS} == set()


def child(make, pipe):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Python installs handlers without SA_RESTART.
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    call = make()
    pipe.send("begins")
    try:
        try:
            result = f"returned {call()!r}"
        except KeyboardInterrupt:
            result = time.monotonic()
    except BaseException as error:  # noqa: BLE001, the parent shows it
        result = repr(error)
    pipe.send(result)
    os._exit(0)


def interrupted(make, before=lambda pid: time.sleep(0.3)):
    """Returns the seconds from Ctrl-C to its exception, or a text.

    ``before(pid)`` runs while the call begins.
    """
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(make, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert mine.poll(60), "not begun"
        mine.recv()
        before(process.pid)
        begin = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        if not mine.poll(HOPELESS):
            return "not interrupted"
        result = mine.recv()
        return result if isinstance(result, str) else result - begin
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("name", sorted(CALLS))
def test_control_c_ends_a_blocking_call(name):
    # A busy machine may need several attempts.
    for _ in range(3):
        took = interrupted(CALLS[name])
        assert not isinstance(took, str), took
        if took < LIMIT:
            return
    pytest.fail(f"the exception came after {took} s")


def signalled(pid):
    for _ in range(60):
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.005)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_handled_signal_does_not_end_a_blocking_call(name):
    took = interrupted(CALLS[name], signalled)
    assert not isinstance(took, str), took
