"""Tests of the installed Python package, run by `cargo xtask test`.

A test may not see the sources, because it would not detect files that the package lacks.
"""

import faulthandler
import os
import signal
import sys
from pathlib import Path

import pytest

import rdzv

SOURCES = Path(__file__).resolve().parents[1]
# Time limit of one test. Python cannot always interrupt native calls. So at the limit the whole run
# ends, with the stacks of all threads.
LIMIT_SECONDS = 600 + int(os.environ.get("RDZV_TEST_CALLS", "0")) // 1000

if SOURCES in Path(rdzv.__file__).resolve().parents or str(SOURCES) in sys.path:
    pytest.exit(f"rdzv is imported from {rdzv.__file__}: run `cargo xtask python`, and take python/ off the path", 4)

# A shell that starts the tests with `&` makes them ignore SIGINT, and a program that they start
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# PyTorch prints a native stack for every error that a test causes.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def pytest_generate_tests(metafunc):
    """Repeats tests with the mark `accident(rounds=1)`.

    RDZV_TEST_ROUNDS sets the number of rounds; `rounds` is its default.
    """
    mark = metafunc.definition.get_closest_marker("accident")
    if mark is not None:
        rounds = int(os.environ.get("RDZV_TEST_ROUNDS", 0)) or mark.kwargs.get("rounds", 1)
        metafunc.fixturenames.append("accident_round")
        metafunc.parametrize("accident_round", range(rounds), indirect=True)


@pytest.fixture
def accident_round(request):
    """Number of the round of an accident test."""
    return request.param


@pytest.fixture(autouse=True)
def bounded():
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def pytest_sessionfinish(session, exitstatus):
    # Expressions for `-k` are meant for one of several suites.
    if session.config.option.keyword and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture
def server():
    with rdzv.StoreServer() as server:
        yield server


@pytest.fixture
def client(server):
    return rdzv.TCPStore(server.host, server.port, timeout=30.0)
