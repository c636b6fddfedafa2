"""PyTorch's dynamic rendezvous: one round of as many agents as its argument says, each a handler in
a thread with a connection of its own, all in this process with the server.

One line of JSON: seconds until all hold their rank, and what went through the store for it: requests,
and bytes of keys and values. If it takes too long, the figures so far, and how many hold none. It may
well take for ever: a node that does not get its heartbeat written for 15 seconds counts as lost, and
with many agents that race for every write, nodes may be lost as fast as others join.
"""

import json
import os
import sys
import threading
import time

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler


LIMIT_SECONDS = 60


class Counting:
    """What a backend uses of a store, counted. A get is two requests: a wait, then the get."""

    def __init__(self, store):
        self.store, self.requests, self.bytes = store, 0, 0

    def get(self, key):
        value = self.store.get(key)
        self.requests += 2
        self.bytes += 2 * len(key) + len(value)
        return value

    def compare_set(self, key, expected, desired):
        value = self.store.compare_set(key, expected, desired)
        self.requests += 1
        self.bytes += len(key) + len(expected) + len(desired) + len(value)
        return value


def measure(agents):
    run = f"run-{agents}-{time.monotonic_ns()}"
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    counted, handlers = [], []
    for agent in range(agents):
        store = TCPStore("127.0.0.1", server.port, is_master=False)
        counted.append(Counting(store))
        handlers.append(
            DynamicRendezvousHandler.from_backend(
                run, store, C10dRendezvousBackend(counted[-1], run), agents, agents, "127.0.0.1"
            )
        )
    ranks = []
    start = threading.Barrier(agents + 1)

    def join(handler):
        start.wait()
        ranks.append(handler.next_rendezvous().rank)

    threads = [
        threading.Thread(target=join, args=[handler], daemon=True) for handler in handlers
    ]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join(max(0, began + LIMIT_SECONDS - time.perf_counter()))
    seconds = time.perf_counter() - began
    missing = sum(thread.is_alive() for thread in threads)
    if not missing and sorted(ranks) != list(range(agents)):
        sys.exit(f"{agents} agents hold the ranks {sorted(ranks)}")
    return {
        "seconds": seconds,
        "missing": missing,
        "requests": sum(store.requests for store in counted),
        "bytes": sum(store.bytes for store in counted),
    }


print(json.dumps(measure(int(sys.argv[1]))), flush=True)
# In order, the ends of this many stores would be reported by one another.
os._exit(0)
