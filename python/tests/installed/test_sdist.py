"""Test of the source distribution: it has all that a wheel is built from."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import maturin

SOURCE = Path(__file__).resolve().parents[3]
PROGRAMS = Path(maturin.__file__).resolve().parents[4] / "bin"

SDIST = "import sys, build_backend; build_backend.build_sdist(sys.argv[1])"
METADATA = "import sys, build_backend; build_backend.prepare_metadata_for_build_wheel(sys.argv[1])"


def backend(program, source, out):
    environment = dict(os.environ)
    environment["PATH"] = f"{PROGRAMS}:{environment['PATH']}"
    environment["PYTHONPATH"] = str(source / "python" / "build")
    command = [sys.executable, "-c", program, str(out)]
    finished = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr


def test_an_sdist_has_what_a_wheel_is_built_from(tmp_path):
    backend(SDIST, SOURCE, tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        members.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    for name in ("LICENSE-MIT", "LICENSE-APACHE", "Cargo.lock", ".cargo/config.toml", "python/rdzv/_rdzv.pyi"):
        assert (source / name).is_file(), name
    # The backend works without a checkout, with the launcher's crate in the workspace.
    backend(METADATA, source, tmp_path / "metadata")
    assert list((tmp_path / "metadata").glob("rdzv-*.dist-info/METADATA"))
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    listed = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=60)
    assert '"name":"rdzv"' in listed.stdout, listed.stderr


def test_on_another_system_the_backend_ends_with_one_sentence():
    program = "import sys; sys.platform = 'darwin'; import build_backend"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE / "python" / "build")}
    finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert finished.returncode == 1
    (line,) = finished.stderr.splitlines()
    assert line.startswith("rdzv runs only on Linux")
