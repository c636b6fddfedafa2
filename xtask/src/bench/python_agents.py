"""Agents of stock torchrun meet: for each line read, one line of JSON.

"COUNT": milliseconds until the last of so many agents has its rank, from the moment at which all are there: of the backend rdzv,
and of PyTorch's c10d. Each agent is a process with PyTorch loaded; how long that takes is not in it.
"""

import json
import multiprocessing
import socket
import sys
import time

import torch.distributed.elastic.rendezvous.registry as registry
from torch.distributed.elastic.rendezvous import RendezvousParameters

import rdzv.torch.elastic

registry._register_default_handlers()
try:
    registry.handler_registry.register("rdzv", rdzv.torch.elastic.handler())
except ValueError:
    # It was found by its entry point.
    pass


def agent(backend, count, port, start, pipe):
    parameters = RendezvousParameters(backend, f"127.0.0.1:{port}", "job", count, count, local_addr="127.0.0.1")
    start.wait()
    handler = registry.get_rendezvous_handler(parameters)
    info = handler.next_rendezvous()
    pipe.send((time.monotonic(), info.rank))
    # Until all have it: this may be the host of the store.
    start.wait()
    time.sleep(0)


def formed(backend, count):
    context = multiprocessing.get_context("fork")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    start = context.Barrier(count + 1)
    pipes, agents = [], []
    for _ in range(count):
        mine, theirs = context.Pipe(duplex=False)
        agents.append(context.Process(target=agent, args=(backend, count, port, start, theirs), daemon=True))
        agents[-1].start()
        pipes.append(mine)
    start.wait()
    began = time.monotonic()
    results = []
    for pipe in pipes:
        if not pipe.poll(120):
            sys.exit(f"{count} agents of {backend} do not meet")
        results.append(pipe.recv())
    if sorted(rank for _, rank in results) != list(range(count)):
        sys.exit(f"{count} agents of {backend} have the ranks {sorted(rank for _, rank in results)}")
    start.wait()
    for one in agents:
        one.join(60)
        one.kill()
    return (max(at for at, _ in results) - began) * 1e3


for line in sys.stdin:
    print(json.dumps([formed("rdzv", int(line)), formed("c10d", int(line))]), flush=True)
