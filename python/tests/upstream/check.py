"""Outcomes of PyTorch's suite, compared with `expected.toml`.

``python check.py`` runs all tests with rdzv. Then it runs the tests that require the name gloo, with rdzv under that
name, and finally all tests with gloo. It prints every difference, and ends with 1 if there is one. A run takes a quarter
of an hour.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
MOST_EXCEPTIONS = 10


def expected():
    return tomllib.loads((HERE / "expected.toml").read_text())


def outcomes(backend, names=(), timeout=None):
    """Runs the suite, or some of its tests, in a separate process.

    Returns name -> [outcome, reason].
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, HERE / "suite.py", backend, str(expected()["world_size"]), file.name, *names]
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(Path(file.name).read_text())


def differences(ours, theirs, wanted):
    """Differences from the expected outcomes, as sentences.

    `theirs` are the outcomes of gloo.
    """
    found = []
    outcome_of = dict.fromkeys(wanted["passed"]["names"], "passed") | dict.fromkeys(wanted["failed"], "failed")
    for group in wanted["skipped"]:
        outcome_of |= dict.fromkeys(group["names"], "skipped")
    for name in sorted(outcome_of.keys() | ours.keys()):
        is_now, reason = ours.get(name, ["gone", ""])
        should = outcome_of.get(name, "not listed")
        if is_now != should:
            found.append(f"{name}: expected {should}, but {is_now} {reason}")
    if len(wanted["failed"]) > MOST_EXCEPTIONS:
        found.append(f"{len(wanted['failed'])} exceptions, at most {MOST_EXCEPTIONS}")
    for name, (outcome, _) in ours.items():
        if outcome == "failed" and theirs[name][0] != "passed":
            found.append(f"{name}: it fails on gloo as well, so it is no exception of ours")
    return found


def count(outcomes):
    kinds = [outcome for outcome, _ in outcomes.values()]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("passed", "failed", "skipped"))


def main():
    wanted = expected()
    ours, theirs = outcomes("rdzv"), outcomes("gloo")
    found = differences(ours, theirs, wanted)
    by_name = outcomes("gloo-by-rdzv", wanted["gloo_by_rdzv"]["names"])
    found += [f"{name}, as gloo: {outcome} {reason}" for name, (outcome, reason) in by_name.items() if outcome != "passed"]
    print(f"rdzv: {count(ours)}\ngloo: {count(theirs)}\ngloo served by rdzv: {count(by_name)}")
    print("\n".join(found) or "as expected")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
