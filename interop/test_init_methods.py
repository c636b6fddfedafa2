"""Tests that init-method URLs give the same results and errors as PyTorch."""

import os
import subprocess
from datetime import timedelta

import pytest
from torch.distributed.rendezvous import rendezvous

from launching import STORE_CLIENT, environment

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

# URL, environment.
CASES = [
    # Only the scheme and the query matter.
    ("env://", ALONE),
    ("env:", ALONE),
    ("env:x", ALONE),
    ("env://x", ALONE),
    ("ENV://", ALONE),
    ("env://?rank=0&world_size=1", ALONE),
    ("env://", ALONE | {"RANK": "x"}),
    ("env://", {"RANK": "x"}),
    ("env://", {"RANK": "0"}),
    ("env://", ALONE | {"MASTER_PORT": "-1"}),
    ("env://", ALONE | {"MASTER_PORT": "65536"}),
    ("env://?rank=x&world_size=y", ALONE),
    # A single worker may use port 0.
    ("tcp://127.0.0.1:0?rank=0&world_size=1", {}),
    ("TCP://127.0.0.1:0?rank=0&world_size=1", {}),
    # Parameters with a second `=`.
    ("tcp://127.0.0.1:0?rank=0=7&world_size=1=2&other=b=c", {}),
    ("tcp:127.0.0.1:0?rank=0&world_size=1", {}),
    ("tcp://127.0.0.1?rank=x", {}),
    # The error about a missing parameter comes before the error about an invalid number.
    ("tcp://127.0.0.1:1?rank=x", {}),
    ("tcp://127.0.0.1:1?world_size=x", {}),
    ("tcp://127.0.0.1:1?rank=x&world_size=y", {}),
    ("tcp://127.0.0.1:1?rank=0&world_size=y", {}),
    ("tcp://:1?rank=0&world_size=1", {}),
    ("file://host?rank=0&world_size=1", {}),
    ("file:///nowhere/f?rank=x", {}),
    ("file:///nowhere/f?world_size=x", {}),
    ("file:///nowhere/f?rank=x&world_size=1", {}),
    ("file://{path}?rank=0&world_size=1", {}),
    ("file:{path}?rank=0&world_size=1", {}),
    ("other://", {}),
]


def theirs(url):
    """Returns the same two lines as the program of rdzv."""
    lines = []
    try:
        rounds = rendezvous(url, timeout=timedelta(seconds=10))
    except Exception as error:
        return [f"error {error}"] * 2
    for _ in range(2):
        try:
            # Keeps the store, because the host of the store would end it.
            store, rank, world_size = joined = next(rounds)  # noqa: F841
            lines.append(f"joined {rank} {world_size}")
        except StopIteration:
            # An iterator that has failed returns nothing more.
            lines.append(lines[-1])
        except Exception as error:
            lines.append(f"error {error}")
    return lines


@pytest.mark.parametrize(("url", "variables"), CASES)
def test_urls_are_understood_as_by_pytorch(url, variables, tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    expected = theirs(url.replace("{path}", str(tmp_path / "theirs")))
    ours = subprocess.run(
        [STORE_CLIENT, "rendezvous", url.replace("{path}", str(tmp_path / "ours"))],
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ours.stdout.splitlines() == expected, os.linesep + ours.stderr


def test_port_0_for_several_workers_is_refused():
    """Intended difference: with PyTorch, rank 0 waits in vain until its timeout."""
    ours = subprocess.run(
        [STORE_CLIENT, "rendezvous", "tcp://127.0.0.1:0?rank=0&world_size=2"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "port 0 of 127.0.0.1 cannot be shared" in ours.stdout
