"""Examples of the pages on groups, with the ranks of their first comment."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[3] / "docs" / "python"


def blocks():
    for page in ("group.md", "torch-backend.md"):
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.S)):
            yield pytest.param(block, id=f"{page}-{number}")


@pytest.mark.parametrize("block", list(blocks()))
def test_an_example_runs(server, block):
    ranks = int(re.match(r"# ranks: (\d+)\n", block).group(1))
    environment = {
        "MASTER_ADDR": server.host,
        "MASTER_PORT": str(server.port),
        "WORLD_SIZE": str(ranks),
        # The launcher sets this variable too: the store exists already.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", block],
            env={"PATH": "", "RANK": str(rank), **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=280)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()
