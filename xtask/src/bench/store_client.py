"""Measurement of PyTorch's own client.

It reads ports from standard input, and measures the median time of each call at each port.

One line of JSON per port: call -> microseconds.

The speed of a sleeping server depends on the processor where the kernel last ran its thread, and
that changes after about a thousand calls. So each call is made often enough to reach the lasting
state.
"""

import json
import statistics
import sys
import time

from torch.distributed import TCPStore

CALLS = {
    "set and add": lambda store: (store.set("key", b"v" * 100), store.add("other", 1)),
    "get": lambda store: store.get("key"),
    "add": lambda store: store.add("counter", 1),
    "check": lambda store: store.check(["key", "counter"]),
    "wait": lambda store: store.wait(["key"]),
    "compare_set": lambda store: store.compare_set("swapped", "", "v"),
    "get of 1 MiB": lambda store: store.get("large"),
}

for line in sys.stdin:
    store = TCPStore("127.0.0.1", int(line), is_master=False)
    store.set("key", b"v" * 100)
    store.set("large", b"v" * (1 << 20))
    times = {}
    for name, call in CALLS.items():
        samples = []
        for _ in range(200 if name == "get of 1 MiB" else 10000):
            began = time.perf_counter_ns()
            call(store)
            samples.append(time.perf_counter_ns() - began)
        times[name] = statistics.median(samples) / 1000
    print(json.dumps(times), flush=True)
