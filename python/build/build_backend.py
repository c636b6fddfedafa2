"""Build backend: that of maturin, with the native launcher in the wheel.

maturin builds one crate for a wheel. The launcher is another crate, so it is built first and put
into the folder from which maturin takes scripts. An sdist has the whole workspace and this file, so
it builds the same wheel.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

if sys.platform != "linux":
    # pip prints only this line, without a traceback.
    sys.exit("rdzv runs only on Linux: install it on a Linux machine, in a container or in WSL")

import maturin

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "python" / "data" / "scripts"


def _build_launcher():
    """Builds the program `rdzv`, unless RDZV_BUILD_LAUNCHER names a built one."""
    built = os.environ.get("RDZV_BUILD_LAUNCHER")
    if built is None:
        subprocess.run(["cargo", "build", "--release", "--locked", "--package", "rdzv"], cwd=ROOT, check=True)
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        built = target / "release" / "rdzv"
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    shutil.copy2(built, SCRIPTS / "rdzv")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _build_launcher()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    return maturin.build_sdist(sdist_directory, config_settings)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    # maturin needs the folder of data even here, before the launcher is in it.
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
