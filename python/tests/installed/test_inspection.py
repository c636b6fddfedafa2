"""Test that the check of released wheels finds defects."""

import importlib.util
import zipfile
from pathlib import Path

import pytest

import rdzv

FILE = Path(__file__).resolve().parents[2] / "build" / "inspect_wheel.py"
spec = importlib.util.spec_from_file_location("inspect_wheel", FILE)
inspect_wheel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(inspect_wheel)


def wheel(folder, *, requires=""):
    path = folder / "rdzv-0-cp311-abi3-linux_x86_64.whl"
    native = Path(rdzv._rdzv.__file__).read_bytes()[: 1 << 20] + b"\0GLIBC_2.17\0GLIBC_2.99\0"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rdzv/_rdzv.abi3.so", native)
        archive.writestr("rdzv-0.data/scripts/rdzv", native)
        archive.writestr("rdzv-0.dist-info/METADATA", f"Name: rdzv\n{requires}\n")
        archive.writestr("rdzv-0.dist-info/licenses/LICENSE-MIT", "")
    return path


def test_the_newest_version_counts(tmp_path):
    assert inspect_wheel.inspect(wheel(tmp_path), (2, 99)) == []
    findings = inspect_wheel.inspect(wheel(tmp_path), (2, 98))
    assert len(findings) == 2 and "glibc 2.99, newer than 2.98" in findings[0]


def test_a_dependency_is_found(tmp_path):
    path = wheel(tmp_path, requires="Requires-Dist: torch; extra == 'torch'\nRequires-Dist: numpy")
    assert inspect_wheel.inspect(path, (2, 99)) == ["it depends on something: Requires-Dist: numpy"]


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="ELF"):
        inspect_wheel.glibc(b"#!/bin/sh")
