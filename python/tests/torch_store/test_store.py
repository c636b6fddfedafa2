"""Stores of rdzv as stores of torch."""

import gc
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import rdzv
import rdzv.torch


def test_a_tcp_store_becomes_the_client_of_torch(server, client):
    theirs = rdzv.torch.store(client)
    assert type(theirs) is dist.TCPStore
    theirs.set("key", "value")
    assert client.get("key") == b"value"
    assert theirs.timeout == timedelta(seconds=30)
    part = rdzv.torch.store(client.prefix("outer").prefix("inner"))
    assert type(part) is dist.PrefixStore
    part.set("key", "value")
    assert client.get("outer/inner/key") == b"value"


@pytest.fixture
def theirs():
    return rdzv.torch.store(rdzv.HashStore())


def test_other_stores_become_python_stores(theirs):
    assert type(theirs) is rdzv.torch.PyStore and isinstance(theirs, dist.Store)
    assert type(rdzv.torch.store(rdzv.HashStore().prefix("p"))) is rdzv.torch.PyStore
    with pytest.raises(TypeError, match="store of rdzv"):
        rdzv.torch.store(dist.HashStore())


def test_every_call_of_a_python_store_arrives_through_c(theirs):
    """A PrefixStore is C++ code, which calls the Python object by other names."""
    outer = dist.PrefixStore("outer", theirs)
    outer.set("key", "value")
    assert theirs.get("outer/key") == b"value" and outer.get("key") == b"value"
    assert outer.add("n", 2) == 2
    assert outer.compare_set("key", "value", "new") == b"new"
    assert outer.check(["key"]) and not outer.check(["gone"])
    outer.wait(["key"], timedelta(seconds=5))
    outer.append("key", "er")
    assert outer.multi_get(["key", "n"]) == [b"newer", b"2"]
    outer.multi_set(["a", "b"], ["1", "2"])
    assert outer.num_keys() == 4
    assert outer.delete_key("a")
    assert outer.has_extended_api()
    outer.barrier("gate", 1)


def test_a_timeout_that_torch_sets_is_obeyed(theirs):
    theirs.set_timeout(timedelta(milliseconds=50))
    with pytest.raises(Exception, match="never"):
        dist.PrefixStore("outer", theirs).get("never")
    with pytest.raises(rdzv.StoreTimeout):
        theirs.wait(["never"], timedelta(0))


def test_a_python_store_outlives_its_last_name():
    """The Python half of a store must stay alive as long as the C++ half."""
    outer = dist.PrefixStore("outer", rdzv.torch.store(rdzv.HashStore()))
    clone = dist.PrefixStore("outer", rdzv.torch.store(rdzv.HashStore()).clone())
    gc.collect()
    for store in (outer, clone):
        store.set("key", "value")
        assert store.get("key") == b"value"


@pytest.mark.parametrize("kind", ["tcp", "hash"])
def test_a_process_group_meets_in_it(kind, server):
    ours = rdzv.TCPStore(server.host, server.port) if kind == "tcp" else rdzv.HashStore()
    dist.init_process_group("gloo", store=rdzv.torch.store(ours), rank=0, world_size=1)
    try:
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1, 1, 1]
    finally:
        dist.destroy_process_group()


def test_without_torch_the_remedy_is_named():
    program = """
import sys
sys.modules['torch'] = None
import rdzv
try:
    import rdzv.torch
except ImportError as error:
    print(error)
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert finished.stdout == "rdzv.torch needs torch: pip install rdzv[torch]\n", finished.stderr
