"""Forty tests of PyTorch's own suite.

`cargo xtask test --upstream` runs the whole suite.
"""

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
