"""Functions and classes that the workers of the tests serve."""

import asyncio
import dataclasses
import logging
import os
import threading
import time

from rdzv import rpc


@rpc.function
def nothing():
    return None


@rpc.function
def add(a, b=0):
    return a + b


@rpc.function
def echo(value):
    return value


@rpc.function
def double(value):
    return value * 2


@rpc.function
def sum_of(array):
    return float(array.sum()), array.flags.writeable


@rpc.function
def fill(array, value):
    array[:] = value
    return array


@rpc.function
def fail(kind, text):
    raise {"value": ValueError, "key": KeyError, "exit": SystemExit, "own": Own}[kind](text)


@rpc.function
def fail_because():
    try:
        raise KeyError("weights")
    except KeyError as error:
        raise ValueError("cannot load") from error


class Own(Exception):
    """Exception that is not registered, so no worker may unpickle it."""


@rpc.function
def unpicklable():
    return threading.Lock()


@rpc.function
def slow(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if rpc.is_cancelled():
            flags["cancelled"] = True
            return "cancelled"
        time.sleep(0.005)
    return "slept"


released = threading.Event()


@rpc.function
def wait_for_release():
    """Runs until its caller cancels it, and ends at the caller's next command.

    A late caller would get a result at its deadline.
    """
    while not rpc.is_cancelled():
        time.sleep(0.005)
    flags["cancelled"] = True
    return released.wait(60)


@rpc.function
def release():
    released.set()


flags = {}


@rpc.function
def mark():
    flags["marked"] = True


@rpc.function
def flag(name):
    return flags.get(name)


@rpc.function
def who():
    return rpc.caller().name, rpc.get_worker_info().name


@rpc.function
def chain(names):
    """Calls the next worker of the list."""
    if not names:
        return [rpc.get_worker_info().name]
    return [rpc.get_worker_info().name, *rpc.rpc_sync(names[0], chain, args=(names[1:],))]


@rpc.function
def nested(depth, how):
    """Calls back and forth between w0 and w1."""
    if depth == 0:
        return 0
    to = "w1" if rpc.get_worker_info().name == "w0" else "w0"
    args = (depth - 1, how)
    if how == "sync":
        return 1 + rpc.rpc_sync(to, nested, args=args)
    if how == "async":
        return 1 + rpc.rpc_async(to, nested, args=args).wait()
    return 1 + rpc.remote(to, nested, args=args).to_here()


@rpc.function
def fail_nested(depth):
    """Fails on the last worker of a chain."""
    if depth == 0:
        raise ValueError("at the end")
    rpc.rpc_sync("w1" if rpc.get_worker_info().name == "w0" else "w0", fail_nested, args=(depth - 1,))


@rpc.function
async def later(value):
    await asyncio.sleep(0.01)
    return value


@rpc.function
async def calls_on(to, value):
    return await rpc.call(to, later, value)


@rpc.function
@rpc.functions.async_execution
def add_elsewhere(to, a, b):
    return rpc.rpc_async(to, add, args=(a, b)).then(lambda done: done.wait() + 1000)


@rpc.function
@rpc.functions.async_execution
def no_future():
    return 1


@rpc.function
@dataclasses.dataclass
class Point:
    x: float
    y: float


@rpc.function
class Counter:
    def __init__(self, start=0):
        self.value = start

    def add(self, amount):
        self.value += amount
        return self.value

    def get(self):
        return self.value

    def _secret(self):
        return "secret"


@rpc.function
def value_of(rref):
    return rref.to_here()


@rpc.function
def keep(rref):
    flags["kept"] = rref


@rpc.function
def add_to(rref, amount):
    return rref.rpc_sync().add(amount)


warned = []


@rpc.function
def keep_warnings():
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())
    logging.getLogger("rdzv.rpc").addHandler(handler)


@rpc.function
def warnings():
    return warned


@rpc.function
def die():
    os._exit(9)


@rpc.function
def forks(value):
    """Forks a child that tries to answer the call, and returns its outcome."""
    request = rpc._agent._request.get()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            request.reply(b"", [], [])
        except RuntimeError as error:
            code = 0 if "does not cross a fork" in str(error) else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), value


@rpc.function
def pid():
    return os.getpid()


@rpc.function
def counters():
    import rdzv.rpc._agent as agents

    return agents.current()._native.traffic()


def not_registered():
    flags["ran"] = True
