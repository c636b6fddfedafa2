"""Tests of the installed package: its files, imports and programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rdzv

NOT_LOADED = {
    "asyncio",
    "dataclasses",
    "importlib.metadata",
    "numpy",
    "ssl",
    "threading",
    "torch",
    "typing",
}


def python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, **options)


def test_import_loads_no_module_that_takes_long():
    # This runs without `site`, which loads modules that folders of the environment specify. So the
    # folders are passed explicitly.
    folder = str(Path(rdzv.__file__).parents[1])
    program = f"import sys; sys.path.append({folder!r}); import rdzv; print(*sys.modules)"
    finished = python("-I", "-S", "-c", program)
    loaded = set(finished.stdout.split())
    assert "rdzv" in loaded, finished.stderr
    assert loaded & NOT_LOADED == set()


def test_every_public_name_is_there():
    assert [name for name in rdzv.__all__ if not hasattr(rdzv, name)] == []
    assert set(rdzv.__all__) <= set(dir(rdzv))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rdzv.nothing
    for name in rdzv.__all__:
        value = getattr(rdzv, name)
        if isinstance(value, type):
            assert value.__module__ == "rdzv", name


def test_the_launcher_comes_along():
    version = subprocess.run([rdzv.find_rdzv_bin(), "--version"], capture_output=True, text=True)
    assert version.stdout.split() == ["rdzv", rdzv.__version__]
    assert python("-m", "rdzv", "--version").stdout == version.stdout
    assert Path(rdzv.find_rdzv_bin()).parent == Path(sys.executable).parent


def test_workers_of_the_module_have_its_interpreter(tmp_path):
    script = tmp_path / "train.py"
    # The output is one write, so that lines of two workers do not mix.
    script.write_text("import sys; sys.stdout.write(sys.executable + chr(10))")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_EXEC"}
    finished = python("-m", "rdzv", "run", "--standalone", "--nproc-per-node", "2", script, env=environment)
    assert finished.stdout.split() == [sys.executable] * 2, finished.stderr


def test_a_launcher_that_is_not_there_is_looked_for_by_name(tmp_path, monkeypatch):
    import sysconfig

    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        rdzv.find_rdzv_bin()


def test_the_wheel_has_types_licences_and_no_dependency():
    from importlib.metadata import distribution

    package = distribution("rdzv")
    files = {str(file) for file in package.files}
    assert {"rdzv/py.typed", "rdzv/_rdzv.pyi", "rdzv/_rdzv.abi3.so"} <= files
    assert sum("LICENSE" in file for file in files) >= 2
    # torch and pytest are extras.
    assert all("extra ==" in requirement for requirement in package.requires or [])
    assert package.metadata["Requires-Python"] == ">=3.11"
    assert not any(file.endswith("/torchrun") for file in files)


INTROSPECTION = """
import inspect, pydoc, rlcompleter, sys
sys.path.append(sys.argv[1])
sys.modules["torch"] = None
import rdzv
completer = rlcompleter.Completer({"rdzv": rdzv})
names = [completer.complete("rdzv.", number) for number in range(len(dir(rdzv)))]
assert any(name and name.startswith("rdzv.launch") for name in names), names
assert not hasattr(rdzv, "torch") and not hasattr(rdzv, "no_such_name")
assert "launch" in dict(inspect.getmembers(rdzv))
text = pydoc.render_doc(rdzv)
assert "Control plane" in text
try:
    rdzv.torch
except AttributeError as error:
    assert "pip install rdzv[torch]" in str(error), error
print(*sys.modules)
"""


def test_introspection_raises_nothing_and_loads_nothing_that_takes_long():
    folder = str(Path(rdzv.__file__).parents[1])
    finished = python("-I", "-S", "-c", INTROSPECTION, folder)
    assert finished.returncode == 0, finished.stderr
    assert set(finished.stdout.split()) & {"asyncio", "numpy", "ssl"} == set()
    # With torch, too.
    finished = python("-c", "import inspect, rdzv, sys; inspect.getmembers(rdzv); print(*sys.modules)")
    assert "rdzv.rpc" in finished.stdout and "torch" not in finished.stdout.split(), finished.stderr
