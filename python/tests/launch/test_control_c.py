"""Tests of an exception before each instruction of `launch`."""

import os
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


# The exception may also be raised in `__del__`, and is lost there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [Raised, KeyboardInterrupt])
@pytest.mark.parametrize("function", ["math:factorial", ["true"]], ids=["function", "command"])
def test_an_exception_before_any_instruction_leaves_nothing(function, error, tmp_path, monkeypatch):
    program = tmp_path / "rdzv"
    program.write_text(LAUNCHER)
    program.chmod(0o700)
    folders = tmp_path / "folders"
    abandoned = folders / "rdzv-call-1-abandoned" / "0.0"
    monkeypatch.setattr(_program, "find_rdzv_bin", lambda: str(program))
    monkeypatch.setenv("TMPDIR", str(folders))

    def call():
        abandoned.mkdir(parents=True, exist_ok=True)
        (abandoned / "0").write_text("")
        rdzv.launch(function, (3,), nprocs=1)

    def left():
        # Earlier tests may have left children that nothing has collected.
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
