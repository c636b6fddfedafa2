"""Tests of the installed Python package, which `cargo xtask test` runs.

A test may not see the sources: it would not notice what is missing in the package.
"""

import faulthandler
import os
import signal
import sys
from pathlib import Path

import pytest

import rdzv

SOURCES = Path(__file__).resolve().parents[1]
# Time limit of one test. Python cannot interrupt all native calls, so after this time the whole run
# ends and prints the stacks of all threads.
LIMIT_SECONDS = 600 + int(os.environ.get("RDZV_TEST_CALLS", "0")) // 1000

if SOURCES in Path(rdzv.__file__).resolve().parents or str(SOURCES) in sys.path:
    pytest.exit(f"rdzv is imported from {rdzv.__file__}: run `cargo xtask python`, and take python/ off the path", 4)

# Tests that a shell starts with `&` ignore SIGINT, and so would the programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# PyTorch prints a native stack for every error that a test provokes.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def pytest_generate_tests(metafunc):
    """Repeats tests with the mark `accident(rounds=1)`.

    The number of rounds is RDZV_TEST_ROUNDS, or that of the mark.
    """
    mark = metafunc.definition.get_closest_marker("accident")
    if mark is not None:
        rounds = int(os.environ.get("RDZV_TEST_ROUNDS", 0)) or mark.kwargs.get("rounds", 1)
        metafunc.fixturenames.append("accident_round")
        metafunc.parametrize("accident_round", range(rounds), indirect=True)


@pytest.fixture
def accident_round(request):
    """Number of the round of a repeated test."""
    return request.param


@pytest.fixture(autouse=True)
def bounded():
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def pytest_sessionfinish(session, exitstatus):
    # An expression for `-k` may match tests of another suite only.
    if session.config.option.keyword and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture
def server():
    with rdzv.StoreServer() as server:
        yield server


@pytest.fixture
def client(server):
    return rdzv.TCPStore(server.host, server.port, timeout=30.0)
