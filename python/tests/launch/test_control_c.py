"""Tests of an exception before each instruction of `launch`."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rdzv
from rdzv import _launch, _program

# Launcher that reports a success immediately.
LAUNCHER = """#!/bin/sh
for argument; do
    case $argument in
    --report=*) report=${argument#--report=} ;;
    --events-file=*) : > "${argument#--events-file=}" ;;
    esac
done
echo '{"outcome": "succeeded", "restart_count": 0, "failures": [], "error": null}' > "$report"
"""


class Raised(Exception):
    pass


def raise_at(number, call, error):
    """Makes a call that raises before the instruction of this number.

    Counts each instruction of `_launch` at its first execution. Returns True if the call has that
    many instructions.
    """
    seen = set()

    def trace(frame, event, _):
        if frame.f_code.co_filename != _launch.__file__:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        instruction = (frame.f_code, frame.f_lasti)
        if event == "opcode" and instruction not in seen:
            seen.add(instruction)
            if len(seen) == number:
                raise error
        return trace

    # CPython 3.12 reports instructions only if a frame requests them before `settrace`.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    except error:
        pass
    finally:
        sys.settrace(None)
    return len(seen) >= number


def leaves_nothing(function, error, tmp_path):
    program = tmp_path / "rdzv"
    program.write_text(LAUNCHER)
    program.chmod(0o700)
    folders = tmp_path / "folders"
    abandoned = folders / "rdzv-call-1-abandoned" / "0.0"
    _program.find_rdzv_bin = lambda: str(program)
    os.environ["TMPDIR"] = str(folders)

    def call():
        abandoned.mkdir(parents=True, exist_ok=True)
        (abandoned / "0").write_text("")
        rdzv.launch(function, (3,), nprocs=1)

    def left():
        children = [task.joinpath("children").read_text() for task in Path("/proc/self/task").iterdir()]
        rest = [path for path in folders.iterdir() if path != abandoned.parent]
        return sorted(os.listdir("/proc/self/fd")), rest, sorted(" ".join(children).split())

    call()
    before, number = left(), 1
    while True:
        begin = time.monotonic()
        more = raise_at(number, call, error)
        took = time.monotonic() - begin
        assert left() == before, f"instruction {number}"
        assert took < 8, f"instruction {number} took {took} s"
        if not more:
            break
        number += 1
    assert number > 300


# A fresh interpreter, because an interpreter that raises between instructions may also die of it.
FRESH = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from launch import test_control_c as tests
function = {"function": "math:factorial", "command": ["true"]}[sys.argv[2]]
error = {"Raised": tests.Raised, "KeyboardInterrupt": KeyboardInterrupt}[sys.argv[3]]
tests.leaves_nothing(function, error, Path(sys.argv[4]))
"""


@pytest.mark.parametrize("error", ["Raised", "KeyboardInterrupt"])
@pytest.mark.parametrize("function", ["function", "command"])
def test_an_exception_before_any_instruction_leaves_nothing(function, error, tmp_path):
    tests = Path(__file__).resolve().parents[1]
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", FRESH, tests, function, error, tmp_path],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, f"exit code {ended.returncode}\n{ended.stderr[-4000:]}"
