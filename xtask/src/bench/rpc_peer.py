"""One worker of PyTorch's RPC that executes commands, and is measured.

Its argument is "default" or "uv_basic". Rank, world size and store are in its environment, as an
agent sets it. It prints `{}` when it is ready, and answers every line of its input with one line of
JSON:

- init       joins the group: `seconds`
- calls      calls the next worker: `latency_p50`, `latency_p99`, `paced_p50` (one call every 10 ms),
             `in_flight` (calls per second, 64 at a time), `one_way` and `echo` (bytes per second); and the
             `threads`, `descriptors` and `megabytes` that the group and the first calls added
- idle       does nothing for a while: `cores` that it used
- shutdown   leaves with all others: `seconds`, and ends
"""

import collections
import json
import os
import sys
import time
import warnings

# Parameters of all sides of the benchmark; our program has the same numbers.
CALLS, PACED_CALLS, CALLS_IN_FLIGHT, IN_FLIGHT, BULK_CALLS = 1000, 100, 3000, 64, 10
BULK_ELEMENTS = 16 << 20
WARM_CALLS, WARM_BULK_CALLS = 50, 1
IDLE_SECONDS = 5

configuration, rank, world_size = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = "lo"
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed.rpc as rpc

torch.set_num_threads(1)
# torch warns about things that it does itself.
warnings.simplefilter("ignore")


def nothing():
    """Does nothing: the empty call."""


def take(values):
    """Receives a tensor."""


def give_back(values):
    """Receives a tensor, and returns it."""
    return values


def used():
    """Returns the current resources of this process."""
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "megabytes": int(status["VmRSS"].split()[0]) / 1024,
    }


def init():
    """Joins the group."""
    options = {} if configuration == "default" else {"_transports": ["uv"], "_channels": ["basic"]}
    options = rpc.TensorPipeRpcBackendOptions(**options)
    start = time.perf_counter()
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    return {"seconds": time.perf_counter() - start}


def one_by_one(peer, calls, pause=0.0):
    """Returns the seconds of each of some empty calls, sorted."""
    times = []
    for _ in range(calls):
        if pause:
            time.sleep(pause)
        start = time.perf_counter()
        rpc.rpc_sync(peer, nothing)
        times.append(time.perf_counter() - start)
    return sorted(times)


def many_at_a_time(peer):
    """Returns the number of empty calls per second."""
    futures = collections.deque()
    start = time.perf_counter()
    for _ in range(CALLS_IN_FLIGHT):
        if len(futures) == IN_FLIGHT:
            futures.popleft().wait()
        futures.append(rpc.rpc_async(peer, nothing))
    for future in futures:
        future.wait()
    return CALLS_IN_FLIGHT / (time.perf_counter() - start)


def bulk(peer, function):
    """Returns the bytes per second that are sent to the peer."""
    values = torch.ones(BULK_ELEMENTS)
    for _ in range(WARM_BULK_CALLS):
        rpc.rpc_sync(peer, function, (values,))
    start = time.perf_counter()
    for _ in range(BULK_CALLS):
        rpc.rpc_sync(peer, function, (values,))
    return BULK_CALLS * values.nbytes / (time.perf_counter() - start)


def calls():
    """Calls the next worker."""
    peer = f"w{(rank + 1) % world_size}"
    one_by_one(peer, WARM_CALLS)
    added = {what: value - alone[what] for what, value in used().items()}
    times, paced = one_by_one(peer, CALLS), one_by_one(peer, PACED_CALLS, 0.01)
    return added | {
        "latency_p50": times[len(times) // 2],
        "latency_p90": times[len(times) * 9 // 10],
        "latency_p99": times[len(times) * 99 // 100],
        "paced_p50": paced[len(paced) // 2],
        "in_flight": many_at_a_time(peer),
        "one_way": bulk(peer, take),
        "echo": bulk(peer, give_back),
    }


def idle():
    """Does nothing."""
    start = time.perf_counter(), time.process_time()
    time.sleep(IDLE_SECONDS)
    return {"cores": (time.process_time() - start[1]) / (time.perf_counter() - start[0])}


def shutdown():
    """Leaves with all other workers."""
    start = time.perf_counter()
    rpc.shutdown()
    return {"seconds": time.perf_counter() - start}


alone = used()
print("{}", flush=True)
for line in sys.stdin:
    what = line.strip()
    print(json.dumps({"init": init, "calls": calls, "idle": idle, "shutdown": shutdown}[what]()), flush=True)
    if what == "shutdown":
        break
# The process ends immediately, so the end of the interpreter is not measured.
os._exit(0)
