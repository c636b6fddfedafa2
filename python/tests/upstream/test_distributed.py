"""Forty tests of PyTorch's own suite, and its tests of the elastic API.

`cargo xtask test --upstream` runs all of them.
"""

import json
import os
import subprocess
import sys
import tomllib

import pytest
from upstream import check


@pytest.mark.parametrize(
    ("backend", "section", "part"),
    [("rdzv", "always", 0), ("rdzv", "always", 1), ("gloo-by-rdzv", "gloo_by_rdzv", 0)],
)
def test_tests_of_pytorch_pass(backend, section, part):
    names = check.expected()[section]["names"]
    names = names[16:] if part else names[:16]
    outcomes = check.outcomes(backend, names, timeout=1800)
    assert sorted(outcomes) == sorted(names)
    assert {name: result for name, result in outcomes.items() if result[0] != "passed"} == {}


def test_forty_of_them_are_named():
    wanted = check.expected()
    assert len(wanted["always"]["names"]) + len(wanted["gloo_by_rdzv"]["names"]) == 40
    assert set(wanted["always"]["names"]) <= set(wanted["passed"]["names"])


@pytest.mark.skipif("RDZV_PYTORCH" not in os.environ, reason="RDZV_PYTORCH names no checkout of PyTorch")
def test_tests_of_the_elastic_api_end_as_expected(tmp_path):
    file = tmp_path / "outcomes.json"
    subprocess.run([sys.executable, check.HERE / "elastic.py", os.environ["RDZV_PYTORCH"], file], check=True, timeout=900)
    expected = tomllib.loads((check.HERE / "expected_elastic.toml").read_text())
    allowed = {name for group in expected["failed"] for name in group["names"]}
    outcomes = json.loads(file.read_text())
    failed = {name.split()[1]: reason for name, (outcome, reason) in outcomes.items() if outcome != "passed"}
    assert {name: reason for name, reason in failed.items() if name not in allowed} == {}
    assert len(outcomes) >= 50
