"""Types of the package and of programs that use it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rdzv

DOCS = Path(__file__).resolve().parents[3] / "docs" / "python"

# Permitted differences between the stub and the module: the native halves of classes of
# `rdzv._group`, which no user sees; methods that have a Python name only since 3.12; and a name
# that only the stub has.
ALLOWED = """
rdzv\\._rdzv\\.__all__
rdzv\\._rdzv\\.(Group|Work).*
rdzv\\._rdzv\\.(ArenaBlock|Received|TensorMemory)\\.__buffer__
rdzv\\._rdzv\\._Content
"""


def check(tool, *arguments, folder):
    environment = {**os.environ, "MYPY_CACHE_DIR": str(folder / "cache"), "NO_COLOR": "1"}
    finished = subprocess.run(
        [sys.executable, "-m", tool, *arguments],
        capture_output=True,
        text=True,
        timeout=3000,
        cwd=folder,
        env=environment,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture
def programs(tmp_path):
    """Writes the examples of the documentation to files."""
    for page in sorted(DOCS.glob("*.md")):
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
        for number, block in enumerate(blocks):
            name = page.stem.replace("-", "_")
            (tmp_path / f"{name}_{number}.py").write_text(block)
    for example in (DOCS.parents[1] / "examples").glob("rpc_*.py"):
        (tmp_path / example.name).write_text(example.read_text())
    assert list(tmp_path.iterdir()), "there are no examples"
    return tmp_path


def test_the_stub_of_the_extension_is_true(tmp_path):
    allowed = tmp_path / "allowed"
    allowed.write_text(ALLOWED)
    check(
        "mypy.stubtest",
        "rdzv._rdzv",
        "rdzv._program",
        "--allowlist",
        allowed,
        "--ignore-unused-allowlist",
        folder=tmp_path,
    )


def test_the_package_is_typed_strictly(tmp_path):
    modules = ["rdzv", "rdzv._call", "rdzv._entry", "rdzv._launch", "rdzv._program", "rdzv._waits", "rdzv.testing"]
    modules += ["rdzv.elastic", "rdzv.rendezvous", "rdzv.rpc", "rdzv.rpc.backend_registry", "rdzv.worker"]
    check("mypy", "--strict", *(f"-m{module}" for module in modules), folder=tmp_path)


def test_the_examples_pass_mypy(programs):
    check("mypy", "--strict", *sorted(str(file) for file in programs.glob("*.py")), folder=programs)


def test_the_examples_pass_pyright(programs):
    check("pyright", "--pythonpath", sys.executable, str(programs), folder=programs)


def test_a_wrong_type_is_found(tmp_path):
    """Check that the checks of this file can fail."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import rdzv\nrdzv.HashStore().set(1, b'')\nrdzv.find_rdzv_bin().bit_length()\n")
    with pytest.raises(AssertionError, match="arg-type"):
        check("mypy", "--strict", str(wrong), folder=tmp_path)
    assert Path(rdzv.__file__).with_name("py.typed").is_file()
