"""Calls between two workers in Python: for each line read, one line of JSON.

Any line: quantity -> figures of "registered" (`rdzv.rpc`), "bridge" (`torch.distributed.rpc` with the backend RDZV) and "torch"
(with TENSORPIPE), each in two processes of its own: "empty", microseconds; "tensor" and "array", MiB per second of 64 MiB one
way; "busy", milliseconds, the 99th percentile of empty calls while the main thread of the callee computes.
"""

import json
import multiprocessing
import os
import sys
import threading
import time

CALLS, WARM, BULK_CALLS, WARM_BULK_CALLS, BUSY_CALLS = 3000, 300, 8, 3, 300
ELEMENTS = 16 << 20
MIB = 64
KINDS = ("registered", "bridge", "torch")

go, busy, over = threading.Event(), threading.Event(), threading.Event()


def nothing():
    """The empty call."""


def take(values):
    """Lets values arrive."""


def compute():
    """The main thread computes until `rest`."""
    busy.set()
    go.set()


def rest():
    busy.clear()


def end():
    busy.clear()
    over.set()
    go.set()


def joined(kind, rank, port):
    """Makes this process a worker; the module of the calls."""
    name = f"w{rank}"
    if kind == "registered":
        import rdzv
        from rdzv import rpc

        for function in (nothing, take, compute, rest, end):
            rpc.function(function, name=f"bench.{function.__name__}")
        rpc.init_rpc(name, rank=rank, world_size=2, store=rdzv.TCPStore("127.0.0.1", port))
        return rpc
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    import torch.distributed.rpc as rpc

    backend = rpc.BackendType.TENSORPIPE
    if kind == "bridge":
        import rdzv.torch.rpc

        backend = rpc.BackendType.RDZV
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}")
    rpc.init_rpc(name, backend=backend, rank=rank, world_size=2, rpc_backend_options=options)
    return rpc


def times(rpc, count):
    """Seconds of empty calls, in order of size."""
    samples = []
    for _ in range(count):
        began = time.perf_counter()
        rpc.rpc_sync("w1", nothing)
        samples.append(time.perf_counter() - began)
    return sorted(samples)


def rate(rpc, values):
    # Memory of both sides is there then, as in a program that runs.
    for _ in range(WARM_BULK_CALLS):
        rpc.rpc_sync("w1", take, args=(values,))
    began = time.perf_counter()
    for _ in range(BULK_CALLS):
        rpc.rpc_sync("w1", take, args=(values,))
    return BULK_CALLS * MIB / (time.perf_counter() - began)


def caller(rpc):
    import numpy
    import torch

    torch.set_num_threads(1)
    times(rpc, WARM)
    figures = {"empty": times(rpc, CALLS)[CALLS // 2] * 1e6}
    figures["tensor"] = rate(rpc, torch.ones(ELEMENTS))
    figures["array"] = rate(rpc, numpy.ones(ELEMENTS, dtype=numpy.float32))
    rpc.rpc_sync("w1", compute)
    times(rpc, 10)
    figures["busy"] = times(rpc, BUSY_CALLS)[BUSY_CALLS * 99 // 100] * 1e3
    rpc.rpc_sync("w1", rest)
    rpc.rpc_sync("w1", end)
    return figures


def callee():
    number = 0
    while not over.is_set():
        go.wait()
        while busy.is_set():
            number += 1


def worker(kind, rank, port, pipe):
    rpc = joined(kind, rank, port)
    if rank == 0:
        pipe.send(caller(rpc))
    else:
        callee()
    rpc.shutdown()
    os._exit(0)


def measured(kind):
    import rdzv

    context = multiprocessing.get_context("fork")
    # PyTorch's rank 0 hosts the store itself.
    server = rdzv.StoreServer() if kind == "registered" else None
    port = server.port if server else free_port()
    mine, theirs = context.Pipe(duplex=False)
    workers = [context.Process(target=worker, args=(kind, rank, port, theirs), daemon=True) for rank in range(2)]
    for one in workers:
        one.start()
    if not mine.poll(120):
        sys.exit(f"the calls of {kind} do not end")
    figures = mine.recv()
    for one in workers:
        one.join(60)
        one.kill()
    if server:
        server.close()
    return figures


def free_port():
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


for _ in sys.stdin:
    found = {kind: measured(kind) for kind in KINDS}
    print(json.dumps(found), flush=True)
