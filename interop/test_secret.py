"""Unmodified PyTorch workers in a job with a token, and PyTorch's agents where they may not be."""

import socket

import pytest

from launching import RDZV, TORCHRUN, Running, free_port, worker

URL = "env://"


def own_address() -> str:
    """An address of this host by which other hosts would reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.connect(("192.0.2.1", 9))  # nothing is sent
        return found.getsockname()[0]


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("the token of an interop test\n")
    path.chmod(0o600)
    return path


def node(launcher, host, port, folder, *flags, script=None):
    words = [*launcher, "--nnodes", 2, "--nproc-per-node", 2, "--rdzv-id", "job"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:{port}", "--local-addr", host]
    return Running([*words, *flags, script or worker("collective.py"), URL, folder])


# Loopback, and an address that the workers' store knows because agents were there.
@pytest.mark.parametrize("own", [False, True])
def test_workers_of_pytorch_meet_in_a_job_with_a_token(tmp_path, token, own):
    host = own_address() if own else "127.0.0.1"
    folder = tmp_path / "results"
    folder.mkdir()
    port = free_port()
    nodes = [node([RDZV, "run"], host, port, folder, "--token-file", token) for _ in range(2)]
    for finished in [each.finish() for each in nodes]:
        assert finished.code == 0, finished.all
    assert len(list(folder.iterdir())) == 4


def test_static_nodes_with_a_token_have_workers_of_pytorch(tmp_path, token):
    folder = tmp_path / "results"
    folder.mkdir()
    port = free_port()
    words = [RDZV, "run", "--nnodes", 2, "--nproc-per-node", 2, "--master-addr", own_address()]
    words += ["--master-port", port, "--token-file", token]
    script = [worker("collective.py"), URL, folder]
    nodes = [Running([*words, "--node-rank", rank, *script]) for rank in range(2)]
    for finished in [each.finish() for each in nodes]:
        assert finished.code == 0, finished.all
    assert len(list(folder.iterdir())) == 4


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
    assert "a job token is needed here" in finished.stderr


def test_an_agent_of_torchrun_takes_part_only_where_everybody_may(tmp_path, token):
    folder = tmp_path / "results"
    folder.mkdir()
    port = free_port()
    ours = ["--token-file", token, "--torch-clients", "any", "--rdzv-conf", "is_host=1"]
    nodes = [
        node([RDZV, "run"], "127.0.0.1", port, folder, *ours),
        node([TORCHRUN], "127.0.0.1", port, folder, "--rdzv-conf", "is_host=0"),
    ]
    for finished in [each.finish() for each in nodes]:
        assert finished.code == 0, finished.all
    assert len(list(folder.iterdir())) == 4


def test_an_agent_of_torchrun_is_refused_in_a_job_with_a_token(tmp_path, token):
    port = free_port()
    store = Running([RDZV, "store", "--host", "127.0.0.1", "--port", port, "--token-file", token])
    conf = ["--rdzv-conf", "is_host=0,read_timeout=5"]
    guest = node([TORCHRUN], "127.0.0.1", port, tmp_path, *conf).finish()
    assert guest.code != 0, guest.all
    store.process.terminate()
    finished = store.finish()
    assert "a job token is needed here" in finished.stderr, finished.all
