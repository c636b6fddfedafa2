"""One round of PyTorch's dynamic rendezvous.

The argument is the number of agents. Each agent is a handler in a thread with its own connection. The
server is in the same process. Prints one line of JSON: the seconds until all agents hold their ranks,
and the number of agents without a rank at the time limit. A round may never complete: PyTorch
considers a node lost after 15 seconds without a written heartbeat. With many agents that compete for
every write, nodes may be lost as fast as others join.
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
# Skips the cleanup, in which these stores would report the closed connections of each other.
os._exit(0)
