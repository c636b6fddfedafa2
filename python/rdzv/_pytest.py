"""Plug-in for pytest; its fixture loads ``rdzv.testing`` on first use."""

import pytest


@pytest.fixture(name="rdzv_workers")
def rdzv_workers():
    """:func:`rdzv.testing.run_workers`, which runs a function in ``n`` processes."""
    from rdzv.testing import run_workers

    return run_workers
