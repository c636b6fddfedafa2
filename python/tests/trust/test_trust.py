"""Tests of the secret of a job.

They check the proof, the refusals, and the addresses of listeners.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import processes, threads
from rpc import served
from rpc.peers import group

import rdzv
from rdzv import rpc

CERTIFICATES = Path(__file__).parents[1] / "certificates"
SECRET, OTHER = "correct horse battery staple", b"another secret of this length"


def tls(name, authority="authority"):
    return {
        "certificate": CERTIFICATES / f"{name}.pem",
        "key": str(CERTIFICATES / f"{name}.key"),
        "authorities": CERTIFICATES / f"{authority}.pem",
    }


def refused(server, **arguments):
    with pytest.raises(rdzv.StoreError) as raised:
        rdzv.TCPStore(server.host, server.port, timeout=5, wait=False, **arguments)
    text = str(raised.value)
    assert SECRET not in text and OTHER.decode() not in text
    return text


def test_a_store_with_a_token_admits_those_who_have_it():
    with rdzv.StoreServer(token=SECRET, torch_clients="deny") as server:
        store = rdzv.TCPStore(server.host, server.port, token=SECRET.encode())
        store.set("key", "value")
        assert store.clone().get("key") == b"value"
        assert "token" in refused(server)
        assert "token=" in refused(server, token=OTHER)
        assert "--" not in refused(server, token=OTHER)
    with rdzv.StoreServer() as server:
        assert "token" in refused(server, token=SECRET)


def test_clients_of_torch_are_let_in_as_is_said():
    with rdzv.StoreServer(token=SECRET) as server:
        # This client is on the host of the server.
        dist.TCPStore(server.host, server.port, is_master=False, wait_for_workers=False).set("key", "value")
        assert rdzv.TCPStore(server.host, server.port, token=SECRET).get("key") == b"value"
    with pytest.raises(ValueError, match='"job", "deny" or "any"'):
        rdzv.StoreServer(token=SECRET, torch_clients="some")


def test_a_store_with_certificates_admits_those_who_have_one():
    with rdzv.StoreServer(tls=tls("w0"), torch_clients="deny") as server:
        store = rdzv.TCPStore(server.host, server.port, tls=tls("w1"))
        store.set("key", "value")
        assert store.get("key") == b"value"
        assert "TLS" in refused(server)
        # Neither side accepts the other's certificate here.
        refused(server, tls=tls("stranger"))
        refused(server, tls=tls("stranger", "other-authority"))
        refused(server, tls=tls("w1", "other-authority"))
    with rdzv.StoreServer(tls=tls("w0"), token=SECRET, torch_clients="deny") as server:
        rdzv.TCPStore(server.host, server.port, tls=tls("w1"), token=SECRET).set("key", "value")
        refused(server, tls=tls("w1"), token=OTHER)
        refused(server, tls=tls("w1"))


@pytest.mark.parametrize("make", [lambda **a: rdzv.TCPStore("127.0.0.1", 1, **a), rdzv.StoreServer], ids=["client", "server"])
def test_arguments_that_cannot_be_are_named(make):
    with pytest.raises(ValueError, match="^token=: .*a job token of 5 bytes is too easy to guess") as raised:
        make(token="short")
    assert "'short'" not in str(raised.value)
    with pytest.raises(TypeError, match="token must be bytes or str, not int"):
        make(token=5)
    with pytest.raises(TypeError, match="tls must be a dict"):
        make(tls="w0.pem")
    with pytest.raises(ValueError, match="tls has no authorities"):
        make(tls={"certificate": "x", "key": "y"})
    with pytest.raises(ValueError, match="tls has the unknown key 'ca'"):
        make(tls={**tls("w0"), "ca": "x"})
    with pytest.raises(ValueError, match="nowhere.pem"):
        make(tls={**tls("w0"), "key": "/nowhere.pem"})
    with pytest.raises(ValueError, match="w0.pem"):
        make(tls={**tls("w0"), "key": CERTIFICATES / "w0.pem"})


def listening():
    """Returns the addresses at which this process listens for TCP, in hexadecimal."""
    inodes = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as file:
            for line in file.readlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes:
                    found.add(words[1].rpartition(":")[0])
    return found


LOOPBACK = {"0100007F"}


def test_nothing_listens_beyond_loopback_unless_it_is_asked_for():
    assert listening() == set()

    def member(rank, count, port):
        store = rdzv.TCPStore("127.0.0.1", port)
        with rdzv.Group(store, rank, count) as group:
            group.barrier()
            here = listening()
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=count, store=store)
        here |= listening()
        rpc.shutdown()
        with rdzv.Group(store, rank, count, name="wide", address="0.0.0.0" if rank else None) as group:
            wide = listening()
            store.barrier("wide", count)
        return here, wide

    with rdzv.StoreServer() as server:
        here = listening()
        assert here == LOOPBACK
        (first, first_wide), (second, second_wide) = processes(2, member, server.port)
    assert first == second == first_wide == LOOPBACK
    # The child inherited the listening socket of the server.
    assert second_wide == LOOPBACK | {"00000000"}


def test_a_group_meets_over_a_store_with_a_token():
    with rdzv.StoreServer(token=SECRET, torch_clients="deny") as server:

        def member(rank, count):
            store = rdzv.TCPStore(server.host, server.port, token=SECRET)
            with rdzv.Group(store, rank, count) as group:
                return group.all_gather_objects(rank)

        assert processes(2, member) == [[0, 1]] * 2
    assert threads(2, lambda group: group.all_gather_objects(group.rank)) == [[0, 1]] * 2


def test_calls_prove_the_token():
    def caller():
        assert rpc.rpc_sync("w1", served.add, args=(1, 2)) == 3

    group([caller, lambda: None], options={"token": SECRET})
    group([caller, lambda: None], options={"token": SECRET, "tls": tls("w0")})
    with pytest.raises(Exception, match="too easy to guess"):
        rpc.init_rpc("w0", rank=0, world_size=1, store=rdzv.HashStore(), rpc_backend_options=rpc.RpcOptions(token="short"))


def test_a_worker_with_another_token_is_refused():
    def member(rank, count, port):
        options = rpc.RpcOptions(token=[SECRET, OTHER.decode()][rank], init_deadline=5.0)
        store = rdzv.TCPStore("127.0.0.1", port)
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=count, store=store, rpc_backend_options=options)
        try:
            rpc.rpc_sync(f"w{1 - rank}", served.nothing, timeout=5)
        except rpc.RpcError as error:
            text = f"{type(error).__name__} {error.kind} {error}"
            assert SECRET not in text and OTHER.decode() not in text
        else:
            text = "served"
        store.barrier("called", count)
        rpc.shutdown(graceful=False)
        return text

    with rdzv.StoreServer() as server:
        for text in processes(2, member, server.port):
            assert "token" in text, text


def test_a_worker_of_a_job_with_a_token_has_it(tmp_path):
    token = tmp_path / "token"
    token.write_text(SECRET)
    token.chmod(0o600)
    program = tmp_path / "program.py"
    program.write_text("import rdzv; print('sum', rdzv.worker.store().add('n', 1) > 0, flush=True)")
    command = [
        sys.executable, "-m", "rdzv", "run", "--standalone", "--nproc-per-node", "2", "--token-file", str(token),
        "--torch-clients", "deny", str(program),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("sum True") == 2, finished.stdout + finished.stderr
