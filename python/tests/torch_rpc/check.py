"""Outcomes of PyTorch's tests of RPC, compared with `expected.toml`.

``python check.py`` runs all of them, prints every difference and the numbers, and ends with 1 if there is a difference.
It takes some minutes.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Of the 254 of RpcTest and TensorPipeAgentRpcTest.
LEAST_PASSED = 195


def expected():
    return tomllib.loads((HERE / "expected.toml").read_text())


def outcomes(names=(), timeout=None):
    """Runs the suite, or tests of it, in a process of its own. Returns name -> [outcome, reason]."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, HERE / "suite.py", file.name, *names]
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        assert result.returncode == 0, result.stdout + result.stderr
        return json.loads(Path(file.name).read_text())


def main():
    wanted = expected()
    found = outcomes()
    should = dict.fromkeys(wanted["passed"]["names"], "passed") | dict.fromkeys(wanted["skipped"], "skipped")
    should |= dict.fromkeys(wanted["failed"], "failed")
    differences = []
    for name in sorted(should.keys() | found.keys()):
        is_now, reason = found.get(name, ["gone", ""])
        if is_now != should.get(name, "not listed"):
            differences.append(f"{name}: expected {should.get(name, 'not listed')}, but {is_now} {reason[-500:]}")
    kinds = [outcome for name, (outcome, _) in found.items() if "RpcTest." in name and "Learning" not in name]
    print(", ".join(f"{kinds.count(kind)} {kind}" for kind in ("passed", "failed", "skipped")), "of", len(kinds))
    print("\n".join(differences) or "as expected")
    return 1 if differences or kinds.count("passed") < LEAST_PASSED else 0


if __name__ == "__main__":
    sys.exit(main())
