"""Plug-in for pytest with one fixture; it loads nothing until a test uses it."""

import pytest


@pytest.fixture(name="rdzv_workers")
def rdzv_workers():
    """:func:`rdzv.testing.run_workers`, which runs a function in ``n`` processes."""
    from rdzv.testing import run_workers

    return run_workers
