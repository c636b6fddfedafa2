"""Both clients on one server, in one process: for each line read, one line of JSON.

"PORT": call -> [microseconds of ours, of PyTorch's]; and the requests per second of 64 threads.
"""

import json
import statistics
import sys
import threading
import time

import torch.distributed as dist

import rdzv

THREADS = 64
SECONDS = 1.0

CALLS = {
    "get": lambda store: store.get("key"),
    "set": lambda store: store.set("key", VALUE),
    "add": lambda store: store.add("counter", 1),
    "check": lambda store: store.check(["key", "counter"]),
    "set and add": lambda store: (store.set("key", VALUE), store.add("other", 1)),
}
VALUE = b"v" * 100


def ours(port):
    return rdzv.TCPStore("127.0.0.1", port)


def theirs(port):
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)


def median_us(call, store, count=5000):
    samples = []
    for number in range(count):
        began = time.perf_counter_ns()
        call(store)
        samples.append(time.perf_counter_ns() - began)
        # Nothing answers a `set`, so without this a queue would be measured.
        if number % 64 == 63:
            store.add("other", 1)
    return statistics.median(samples) / 1000


def per_second(stores):
    """Gets of all threads, each with a connection of its own, in thousands per second."""
    stop = time.perf_counter() + SECONDS
    counts = []

    def work(store):
        count = 0
        while time.perf_counter() < stop:
            store.get("key")
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS / 1000


for line in sys.stdin:
    port = int(line)
    pair = (ours(port), theirs(port))
    pair[0].set("key", VALUE)
    figures = {name: [median_us(call, store) for store in pair] for name, call in CALLS.items()}
    figures["threads"] = [per_second([make(port) for _ in range(THREADS)]) for make in (ours, theirs)]
    print(json.dumps(figures), flush=True)
