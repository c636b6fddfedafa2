"""Tests of `rdzv.StoreServer`, with clients of rdzv and of PyTorch."""

import socket
import subprocess
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist

import rdzv


def test_it_listens_when_it_is_there():
    with rdzv.StoreServer() as server:
        assert server.host == "127.0.0.1" and server.port > 0
        rdzv.TCPStore(server.host, server.port, wait=False).set("key", "value")


def test_clients_of_torch_and_ours_meet(server, client):
    theirs = dist.TCPStore(server.host, server.port, wait_for_workers=False, timeout=timedelta(seconds=30))
    theirs.set("key", "value")
    assert client.get("key") == b"value"
    client.queue_push("q", "item")
    assert theirs.queue_pop("q") == b"item"


def test_a_bound_socket_is_taken_over():
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    with rdzv.StoreServer(fd=bound.detach()) as server:
        assert (server.host, server.port) == ("127.0.0.1", port)
        assert rdzv.TCPStore(server.host, port).add("n", 1) == 1


def test_what_is_no_bound_socket_is_refused(tmp_path):
    with socket.socket() as unbound, pytest.raises(ValueError, match="not bound"):
        rdzv.StoreServer(fd=unbound.fileno())
    with open(tmp_path / "file", "w") as file, pytest.raises(ValueError, match="not a bound TCP socket"):
        rdzv.StoreServer(fd=file.fileno())
    with pytest.raises(ValueError, match="fd 9999"):
        rdzv.StoreServer(fd=9999)


def test_the_listening_socket_can_be_passed_on():
    server = rdzv.StoreServer()
    fd, port = server.fileno(), server.port
    heir = (
        "import rdzv, sys\n"
        "server = rdzv.StoreServer(fd=int(sys.argv[1])); print('up', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", heir, str(fd)],
        pass_fds=[fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout.readline() == "up\n"
        server.close()
        assert rdzv.TCPStore("127.0.0.1", port, timeout=30.0).add("n", 1) == 1
        child.stdin.close()
    assert child.returncode == 0


def test_a_port_in_use_is_refused_with_the_remedy(server):
    with pytest.raises(rdzv.StoreError, match="port=0"):
        rdzv.StoreServer(port=server.port)


def test_a_closed_server_says_where_it_was_closed():
    server = rdzv.StoreServer()
    server.close()
    server.close()
    with pytest.raises(RuntimeError, match=r"StoreServer was closed at .*test_server\.py:\d+$"):
        server.fileno()


def test_no_server_is_waited_for_only_if_asked(server):
    port = server.port
    server.close()
    with pytest.raises(rdzv.StoreError, match=rf"127\.0\.0\.1:{port}.*attempts: 1,"):
        rdzv.TCPStore("127.0.0.1", port, wait=False)
    with pytest.raises(rdzv.StoreError, match=rf"127\.0\.0\.1:{port}"):
        rdzv.TCPStore("127.0.0.1", port, timeout=0.2)
