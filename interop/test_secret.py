"""Tests of PyTorch's workers and agents in jobs with a token."""

import shlex

import pytest

from launching import RDZV, TORCHRUN, Running, free_port, worker

URL = "env://"


# The only non-loopback address of a network namespace that a test creates (`unshare -rn`, `ip`).
ELSEWHERE = "10.9.8.7"


def in_a_network_of_its_own(*launches) -> Running:
    """Runs launches on a host with a non-loopback address; all must succeed."""
    lines = [f"ip link set lo up && ip address add {ELSEWHERE}/32 dev lo || exit 9"]
    lines += [shlex.join(map(str, words)) + " & pids=\"$pids $!\"" for words in launches]
    lines += ["for pid in $pids; do wait $pid || exit 1; done"]
    return Running(["unshare", "-rn", "sh", "-c", "\n".join(lines)])


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("the token of an interop test\n")
    path.chmod(0o600)
    return path


def node(launcher, host, port, folder, *flags):
    words = [*launcher, "--nnodes", 2, "--nproc-per-node", 2, "--rdzv-id", "job"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{port}", "--local-addr", host]
    return [*words, *flags, worker("collective.py"), URL, folder]


def assert_all_have_met(folder):
    assert len(list(folder.iterdir())) == 4


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "results"
    path.mkdir()
    return path


def test_workers_of_pytorch_meet_in_a_job_with_a_token(folder, token):
    words = node([RDZV, "run"], "127.0.0.1", free_port(), folder, "--token-file", token)
    for finished in [each.finish() for each in [Running(words), Running(words)]]:
        assert finished.code == 0, finished.all
    assert_all_have_met(folder)


def test_workers_of_pytorch_come_from_the_addresses_of_the_jobs_nodes(folder, token):
    words = node([RDZV, "run"], ELSEWHERE, 29400, folder, "--token-file", token)
    finished = in_a_network_of_its_own(words, words).finish()
    assert finished.code == 0, finished.all
    assert_all_have_met(folder)


def test_static_nodes_with_a_token_have_workers_of_pytorch(folder, token):
    words = [RDZV, "run", "--nnodes", 2, "--nproc-per-node", 2, "--master-addr", ELSEWHERE]
    words += ["--master-port", 29500, "--token-file", token]
    script = [worker("collective.py"), URL, folder]
    nodes = [[*words, "--node-rank", rank, *script] for rank in range(2)]
    finished = in_a_network_of_its_own(*nodes).finish()
    assert finished.code == 0, finished.all
    assert_all_have_met(folder)


def test_workers_that_can_prove_nothing_are_kept_out_if_the_job_says_so(tmp_path, token):
    flags = ["--token-file", token, "--torch-clients", "deny", "--max-restarts", 0]
    script = tmp_path / "meets.py"
    script.write_text(
        "import datetime, os\n"
        "from torch.distributed import TCPStore\n"
        "TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']),"
        " timeout=datetime.timedelta(seconds=5))\n"
    )
    finished = Running([RDZV, "run", *flags, script]).finish()
    assert finished.code == 1, finished.all
    assert "this store requires a job token" in finished.stderr


def test_an_agent_of_torchrun_takes_part_only_where_everybody_may(folder, token):
    port = free_port()
    ours = ["--token-file", token, "--torch-clients", "any", "--rdzv-conf", "is_host=1"]
    nodes = [
        node([RDZV, "run"], "127.0.0.1", port, folder, *ours),
        node([TORCHRUN], "127.0.0.1", port, folder, "--rdzv-conf", "is_host=0"),
    ]
    for finished in [each.finish() for each in list(map(Running, nodes))]:
        assert finished.code == 0, finished.all
    assert_all_have_met(folder)


def test_an_agent_of_torchrun_is_refused_in_a_job_with_a_token(tmp_path, token):
    port = free_port()
    store = Running([RDZV, "store", "--host", "127.0.0.1", "--port", port, "--token-file", token])
    conf = ["--rdzv-conf", "is_host=0,read_timeout=5"]
    guest = Running(node([TORCHRUN], "127.0.0.1", port, tmp_path, *conf)).finish()
    assert guest.code != 0, guest.all
    store.process.terminate()
    finished = store.finish()
    assert "this store requires a job token" in finished.stderr, finished.all
