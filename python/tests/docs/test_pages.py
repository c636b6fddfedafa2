"""Tests of each example of the documentation, from the installed wheel.

An example is a fenced block of Python. Its first comment specifies its number of ranks:
`# ranks: 2`. The launcher starts more than one rank.
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
# Their examples have one rank, and the variables of hang detection.
OTHER_PAGES = [ROOT / "README.md", ROOT / "docs" / "hangs.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def examples(pages):
    for page in pages:
        for number, block in enumerate(BLOCK.findall(page.read_text()), 1):
            yield pytest.param(block, id=f"{page.stem}-{number}")


@pytest.mark.parametrize("block", [*examples(PAGES)])
def test_an_example_runs(block, tmp_path):
    ranks = re.match(r"# ranks: (\d+)\n", block)
    assert ranks, f"the first line must be '# ranks: N':\n{block}"
    program = tmp_path / "example.py"
    program.write_text(block)
    command = [sys.executable, program]
    if int(ranks[1]) > 1:
        launcher = [rdzv.find_rdzv_bin(), "run", "--standalone", "--nproc-per-node", ranks[1]]
        command = [*launcher, program]
    run(command, tmp_path)


@pytest.mark.parametrize("block", [*examples(OTHER_PAGES)])
def test_an_example_of_another_page_runs_in_a_worker(block, tmp_path):
    program = tmp_path / "example.py"
    program.write_text(block)
    launcher = [rdzv.find_rdzv_bin(), "run", "--standalone", "--heartbeat-timeout", "600"]
    run([*launcher, program], tmp_path, TORCHELASTIC_ENABLE_FILE_TIMER="1")


def run(command, folder, **variables):
    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=folder,
        env={**os.environ, "PYTHON_EXEC": sys.executable, **variables},
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
