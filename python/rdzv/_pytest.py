"""Plug-in of pytest: one fixture, which loads nothing before it is used."""

import pytest


@pytest.fixture(name="rdzv_workers")
def rdzv_workers():
    """:func:`rdzv.testing.run_workers`: a function in ``n`` processes."""
    from rdzv.testing import run_workers

    return run_workers
