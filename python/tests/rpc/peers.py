"""Groups of workers for tests.

Each worker is a process, which runs a separate function and then shuts down.
"""

import ctypes
import os
import pickle
import signal
import sys
import time
import traceback
import multiprocessing

from ranks import CALLS

import rdzv

LIMIT_SECONDS = 240 + CALLS // 1000


def group(functions, *, options=None, world_size=None, graceful=True, expect=None):
    """Runs one function per worker, and returns their results.

    `function(server address)` is called after `init_rpc`. Workers are named w0, w1, ... and are
    forked, so that functions may be local.
    """
    context = multiprocessing.get_context("fork")
    count = len(functions)
    with rdzv.StoreServer() as server:
        workers = []
        for rank, function in enumerate(functions):
            mine, theirs = context.Pipe(duplex=False)
            arguments = (server.port, rank, count if world_size is None else world_size, function, options, graceful, theirs)
            process = context.Process(target=_worker, args=arguments, daemon=True)
            process.start()
            theirs.close()
            workers.append((process, mine))
        results = []
        try:
            for rank, (process, pipe) in enumerate(workers):
                lost = expect and rank in expect
                try:
                    assert pipe.poll(LIMIT_SECONDS), f"worker {rank} hangs"
                    good, result = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    assert lost, f"worker {rank} ended without a result"
                    results.append(None)
                    continue
                assert good, f"worker {rank}:\n{result}"
                results.append(result)
            return results
        finally:
            for process, _ in workers:
                process.kill()
                process.join()


def _worker(port, rank, world_size, function, options, graceful, pipe):
    # The process ends with the test.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    from rdzv import rpc

    try:
        store = rdzv.TCPStore("127.0.0.1", port)
        rpc.init_rpc(
            f"w{rank}", rank=rank, world_size=world_size or None, store=store, rpc_backend_options=rpc.RpcOptions(**(options or {}))
        )
        result = True, function()
        if rpc._agent.any_agent() is not None:
            rpc.shutdown(graceful=graceful, timeout=LIMIT_SECONDS)
    except BaseException:  # noqa: BLE001, raised by the parent
        result = False, traceback.format_exc()
    pipe.send_bytes(pickle.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def wait_for(condition, what, seconds=30):
    """Polls for an effect of another thread that has no notification."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)
