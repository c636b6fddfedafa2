"""Fixtures for tests of PyTorch against rdzv: store servers and time limits.

`cargo xtask test` builds the programs, sets the variables with their paths, and runs the suite. It
leaves out the tests of Slurm on a machine that cannot run Slurm. All other tests run: without
PyTorch or without the programs, the run fails.
"""

import faulthandler
import os
import re
import signal
from datetime import timedelta

import pytest

import launching

# Collectives need only loopback, and must work on a machine without a network.
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
# Suppresses the native stack that PyTorch prints for every error that a test causes.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

# A shell that starts the suite with `&` sets SIGINT to be ignored, and the started programs would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

import torch  # noqa: E402  (after its environment variables are set)
import torch.distributed as dist  # noqa: E402

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__

# Longer than any test needs on a slow machine. Python cannot interrupt calls into C++, so at this
# limit the whole run ends, with the stacks of all threads.
LIMIT_SECONDS = 900
TIMEOUT = timedelta(seconds=300)


@pytest.fixture(autouse=True)
def bounded():
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


class RdzvServer:
    """`rdzv store` on a free port."""

    make = "rdzv"

    def __init__(self, *flags):
        words = [launching.RDZV, "store", "--host", "127.0.0.1", "--port", "0", *flags]
        self.running = launching.Running(words)
        announced = self.running.process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", announced)
        if not found:
            self.running.clear()
            pytest.fail(f"rdzv store announced no address: {self.running.finish(10).all}")
        self.host = "127.0.0.1"
        self.port = int(found.group(1))

    def stop(self):
        process = self.running.process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        finished = self.running.finish(15)
        assert finished.code == 0, finished.all
        return finished


class TorchServer:
    """PyTorch's server in this process, which defines the expected results."""

    def __init__(self, libuv: bool):
        self.make = "pytorch" if libuv else "pytorch-legacy"
        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT, use_libuv=libuv
        )
        self.host = "127.0.0.1"
        self.port = self.store.port

    def stop(self):
        del self.store


@pytest.fixture
def rdzv_server():
    server = RdzvServer()
    yield server
    server.stop()


@pytest.fixture(params=["rdzv", "pytorch"])
def server(request):
    """Returns a server for PyTorch's client: that of rdzv or that of PyTorch."""
    server = RdzvServer() if request.param == "rdzv" else TorchServer(libuv=True)
    yield server
    server.stop()


@pytest.fixture(params=["rdzv", "libuv", "legacy"])
def any_server(request):
    """Returns a server of rdzv or PyTorch, including PyTorch's older server."""
    rdzv = request.param == "rdzv"
    server = RdzvServer() if rdzv else TorchServer(libuv=request.param == "libuv")
    yield server
    server.stop()


@pytest.fixture(params=["libuv", "legacy"])
def torch_server(request):
    """Returns a server of PyTorch for the client of rdzv."""
    server = TorchServer(libuv=request.param == "libuv")
    yield server
    server.stop()


def connect(server, timeout=TIMEOUT, **options):
    """Returns PyTorch's client, connected to `server`."""
    options.setdefault("wait_for_workers", False)
    return dist.TCPStore(server.host, server.port, is_master=False, timeout=timeout, **options)


@pytest.fixture
def client(server):
    return connect(server)
