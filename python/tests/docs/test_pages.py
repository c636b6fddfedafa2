"""Test of each example of the documentation with the installed wheel.

An example is a fenced block of Python. Its first comment has its number of ranks: `# ranks: 2`. The launcher starts
examples with several ranks.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rdzv

ROOT = Path(__file__).resolve().parents[3]
PAGES = [*sorted((ROOT / "docs" / "python").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def examples():
    for page in PAGES:
        for number, block in enumerate(BLOCK.findall(page.read_text()), 1):
            yield pytest.param(block, id=f"{page.stem}-{number}")


@pytest.mark.parametrize("block", [*examples()])
def test_an_example_runs(block, tmp_path):
    ranks = re.match(r"# ranks: (\d+)\n", block)
    assert ranks, f"the first line must be '# ranks: N':\n{block}"
    program = tmp_path / "example.py"
    program.write_text(block)
    command = [sys.executable, program]
    if int(ranks[1]) > 1:
        launcher = [rdzv.find_rdzv_bin(), "run", "--standalone", "--nproc-per-node", ranks[1]]
        command = [*launcher, program]
    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=tmp_path,
        env={**os.environ, "PYTHON_EXEC": sys.executable},
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_every_page_says_what_it_is_for_and_has_an_example():
    assert PAGES
    for page in PAGES:
        text = page.read_text()
        assert text.startswith("# "), page
        if page.stem != "migrating":
            assert BLOCK.search(text), f"{page} has no example"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"
