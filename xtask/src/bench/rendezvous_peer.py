"""PyTorch's dynamic rendezvous: one round of the specified number of agents.

Each agent is a handler in a thread with a separate connection. All agents are in this process with
the server.

The output is one line of JSON: the seconds until all hold their rank, and the number of agents
without a rank after the time limit. The round may never end: a node whose heartbeat is not written
for 15 seconds counts as lost. If many agents race for every write, nodes may be lost as fast as
others join.
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


def measure(agents):
    run = f"run-{agents}-{time.monotonic_ns()}"
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    handlers = []
    for agent in range(agents):
        store = TCPStore("127.0.0.1", server.port, is_master=False)
        handlers.append(
            DynamicRendezvousHandler.from_backend(
                run, store, C10dRendezvousBackend(store, run), agents, agents, "127.0.0.1"
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
    }


print(json.dumps(measure(int(sys.argv[1]))), flush=True)
# At an orderly end, the many stores would report each other's ends.
os._exit(0)
