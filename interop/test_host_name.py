"""Tests that the host name in reports is the name that Python finds.

The tests need user namespaces (`unshare -r`) and `ip`, and fail without them.
"""

import json
import sys
import time

import pytest

from launching import RDZV, Finished, finish, worker

LOOPBACK = "127.0.0.1 localhost\n"


def launched(folder, name: str, hosts: str, server: str) -> tuple[Finished, str]:
    """Runs a failing worker on a host with this name; returns the reported host."""
    report = folder / "report.json"
    finished = finish(
        [
            *("unshare", "-rmnu", sys.executable, worker("named_host.py"), name, hosts, server),
            *(RDZV, "run", "--report", report, "--no-python", "sh", "-c", "exit 3"),
        ]
    )
    assert finished.code == 1, finished.all
    document = json.loads(report.read_text())
    host = document["host"]
    assert document["first_failure"]["host"] == host
    assert f"  host      : {host}\n" in finished.stderr
    return finished, host


@pytest.mark.parametrize(
    "name, hosts, server, expected",
    [
        ("node-a", LOOPBACK, "dns", "node-a.cluster.test"),
        ("node-a", LOOPBACK, "none", "node-a"),
        ("node-a", LOOPBACK + "127.0.1.1 node-a.local node-a\n", "none", "node-a.local"),
        # The full name of the host is an alias.
        ("node-a", LOOPBACK + "127.0.1.1 node-a node-a.local\n", "none", "node-a.local"),
        ("node-a", LOOPBACK + "127.0.1.1 real.local node-a\n", "dns", "real.local"),
        ("node-a.site", LOOPBACK, "none", "node-a.site"),
        ("node-a.site", LOOPBACK, "dns", "node-a.site.cluster.test"),
    ],
)
def test_the_host_is_called_as_python_calls_it(tmp_path, name, hosts, server, expected):
    finished, host = launched(tmp_path, name, hosts, server)
    assert host == finished.stdout.splitlines()[0] == expected


def test_a_host_among_the_names_of_loopback_keeps_its_own(tmp_path):
    """Python returns `localhost` for every such host of the job."""
    finished, host = launched(tmp_path, "node-a", "127.0.0.1 localhost node-a\n", "none")
    assert finished.stdout.splitlines()[0] == "localhost"
    assert host == "node-a"


def test_a_name_server_that_is_away_is_not_waited_for(tmp_path):
    began = time.monotonic()
    _, host = launched(tmp_path, "node-a", LOOPBACK, "silent")
    # The resolver would take 10 s for each of its queries.
    assert time.monotonic() - began < 8
    assert host == "node-a"
