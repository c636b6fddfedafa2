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
RPC = ("RpcTest.", "TensorPipeAgentRpcTest.")
# Of the 254 of RPC.
LEAST_PASSED = 195


def expected():
    return tomllib.loads((HERE / "expected.toml").read_text())


def outcomes(names=(), timeout=None):
    """Runs the suite, or some of its tests, in a separate process.

    Returns name -> [outcome, reason].
    """
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
    print("calls and references:", counted(found, RPC))
    gradients = ("DistAutogradTest.", "TensorPipeAgentDistAutogradTest.", "DistOptimizerTest.")
    print("gradients and optimizers:", counted(found, gradients))
    print("\n".join(differences) or "as expected")
    passed = [name for name, (outcome, _) in found.items() if outcome == "passed" and name.startswith(RPC)]
    return 1 if differences or len(passed) < LEAST_PASSED else 0


def counted(found, classes):
    kinds = [outcome for name, (outcome, _) in found.items() if name.startswith(classes)]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("passed", "failed", "skipped")) + f" of {len(kinds)}"


if __name__ == "__main__":
    sys.exit(main())
