"""Tests of wrong arguments, lost servers and closed objects.

They check the error, and that the other objects stay usable.
"""

import math
import pickle
import socket
import threading

import pytest

import rdzv


@pytest.mark.parametrize("timeout", [0, -1, -0.5, math.nan])
def test_a_timeout_that_is_no_time_is_refused(client, timeout):
    with pytest.raises(ValueError, match="timeout is"):
        client.get("key", timeout=timeout)
    with pytest.raises(ValueError, match="timeout is"):
        client.timeout = timeout
    with pytest.raises(TypeError, match="timeout must be seconds"):
        client.wait(["key"], "soon")
    with pytest.raises(ValueError, match="not None"):
        client.set_timeout(None)


def test_wrong_types_are_refused_and_nothing_is_sent(client):
    with pytest.raises(TypeError, match="key"):
        client.set(7, b"value")
    for value in (7, None, bytearray(b"x"), ["x"]):
        with pytest.raises(TypeError, match="value must be bytes or str"):
            client.set("key", value)
    with pytest.raises(TypeError, match="expected must be"):
        client.compare_set("key", 1, "x")
    with pytest.raises(TypeError, match="keys must be a list"):
        client.check("key")
    with pytest.raises(TypeError, match="list of str, not of int"):
        client.wait([1])
    with pytest.raises(TypeError, match="amount must be an int"):
        client.add("key", "1")
    with pytest.raises(ValueError, match="amount is"):
        client.add("key", 1 << 63)
    with pytest.raises(ValueError, match="world_size is 0"):
        client.barrier("gate", 0)
    with pytest.raises(ValueError, match="2 items and values has 1"):
        client.multi_set(["a", "b"], ["1"])
    with pytest.raises(ValueError):
        client.set("\ud800", "a key that is no text")
    assert client.num_keys() == 0


def test_a_value_above_the_limit_is_refused(client):
    longest = 8 << 20
    client.set("key", bytes(longest))
    with pytest.raises(ValueError, match=f"{longest + 1} bytes"):
        client.prefix("p").set("key", bytes(longest + 1))
    assert len(client.get("key")) == longest


def test_wrong_numbers_at_construction():
    with pytest.raises(ValueError, match="port is 70000"):
        rdzv.TCPStore("127.0.0.1", 70000)
    with pytest.raises(ValueError, match="port is -1"):
        rdzv.StoreServer(port=-1)
    with pytest.raises(ValueError, match="world_size is 0"):
        rdzv.FileStore("x", 0)
    with pytest.raises(TypeError):
        rdzv.Store()


def test_an_address_of_another_service_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            peer, _ = listener.accept()
            with peer:
                peer.recv(64)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(rdzv.StoreError, match=f"{port}.*HTTP"):
            rdzv.TCPStore("127.0.0.1", port, timeout=30.0)
        thread.join()


def test_a_name_that_does_not_resolve_is_named():
    with pytest.raises(rdzv.StoreError, match="no-such-host.invalid:29500"):
        rdzv.TCPStore("no-such-host.invalid", 29500, wait=False, timeout=30.0)


def test_a_server_that_is_gone_is_named(server, client):
    server.close()
    with pytest.raises(rdzv.StoreError, match=f"127.0.0.1:{server.port}"):
        client.get("key")


def test_a_closed_store_says_where(client):
    part = client.prefix("part")
    client.close()
    client.close()
    for store in (client, part):
        with pytest.raises(RuntimeError, match=r"TCPStore was closed at .*test_bad_input\.py:\d+$"):
            store.get("key")


def test_adding_to_a_text_is_refused(tmp_path):
    for store in (rdzv.HashStore(), rdzv.FileStore(str(tmp_path / "store"), 1)):
        store.set("key", "text")
        with pytest.raises(ValueError, match='"text" is not a number'):
            store.add("key", 1)
        assert store.get("key") == b"text"


def test_adding_to_a_text_at_a_server_costs_the_connection(server, client):
    client.set("key", "text")
    with pytest.raises(rdzv.StoreError, match=f"{server.port}.*is not a number"):
        client.add("key", 1)
    with pytest.raises(rdzv.StoreError, match="earlier operation"):
        client.get("key")
    with client.clone() as other:
        assert other.get("key") == b"text"


def test_closing_a_prefix_leaves_the_store_below(client):
    client.prefix("part").close()
    assert client.add("n", 1) == 1


def test_errors_can_be_pickled(client):
    with pytest.raises(rdzv.StoreTimeout) as caught:
        client.get("never", timeout=0.05)
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is rdzv.StoreTimeout and str(error) == str(caught.value)
    assert isinstance(error, (rdzv.StoreError, rdzv.Error, RuntimeError)) and isinstance(error, TimeoutError)


def test_a_key_above_the_limit_is_refused_by_its_own_call(client):
    with pytest.raises(ValueError, match="at most 8191 bytes.*kkk.*8192 bytes") as raised:
        client.set("k" * 8192, "v")
    assert len(str(raised.value)) < 400
    client.set("k" * 8191, "v")
    assert client.get("k" * 8191) == b"v"
    with pytest.raises(rdzv.StoreTimeout, match=r"\[never\]"):
        client.get("never", timeout=0.05)


def test_a_caller_that_timed_out_at_a_barrier_waits_again(tmp_path):
    with rdzv.StoreServer() as server:
        tcp = rdzv.TCPStore(server.host, server.port)
        for store in (rdzv.HashStore(), tcp, tcp.prefix("p"), rdzv.FileStore(tmp_path / "store")):
            for _ in range(2):
                with pytest.raises(rdzv.StoreTimeout, match="1 of 2"):
                    store.barrier("b", 2, 0.1)
            other = threading.Thread(target=store.clone().barrier, args=("b", 2, 30))
            other.start()
            store.barrier("b", 2, 30)
            other.join()


def test_addresses_may_have_brackets():
    with rdzv.StoreServer("[::1]") as server:
        assert server.host == "::1"
        assert rdzv.TCPStore("[::1]", server.port).host == "::1"
        with pytest.raises(rdzv.StoreError, match=rf"\[::1\]:{server.port}.*in use.*process \d+ \(\S+\) listens on port"):
            rdzv.StoreServer("[::1]", server.port)


def test_a_server_of_torch_is_pointed_to_the_class_that_hosts():
    with pytest.raises(TypeError, match="not \\(1, True\\)\n.*rdzv.StoreServer"):
        rdzv.TCPStore("127.0.0.1", 0, 1, True)
    with pytest.raises(TypeError, match="'is_master'.*\n.*rdzv.StoreServer"):
        rdzv.TCPStore("127.0.0.1", 1, is_master=True)


def test_a_path_that_is_no_regular_file_is_named_as_such():
    with pytest.raises(rdzv.StoreError, match="/dev/null.*not a regular file, but a device"):
        rdzv.FileStore("/dev/null")


class Logged(rdzv.Store):
    """Store of a user, which keeps its calls."""

    def __init__(self, name):
        self.name, self.calls, self.inner = name, [], rdzv.HashStore()

    def set(self, key, value):
        self.calls.append(key)
        self.inner.set(key, value)

    def get(self, key):
        return self.inner.get(key)

    def add(self, key, amount):
        return self.inner.add(key, amount)

    def compare_set(self, key, expected, desired):
        return self.inner.compare_set(key, expected, desired)

    def check(self, keys):
        return self.inner.check(keys)

    def wait(self, keys, timeout=None):
        self.inner.wait(keys, timeout)

    def delete_key(self, key):
        return self.inner.delete_key(key)


def test_a_subclass_in_python_is_a_store():
    mine = Logged("mine")
    store = rdzv.PrefixStore("p", mine)
    store.set("key", "value")
    assert (store.get("key"), mine.calls, mine.name) == (b"value", ["p/key"], "mine")
    assert store.add("n", 2) == 2 and isinstance(mine, rdzv.Store)
    assert rdzv.Store.of(mine).get("p/key") == b"value"
    from rdzv import rpc

    rpc.init_rpc("w0", rank=0, world_size=1, store=mine)
    rpc.shutdown()
    with pytest.raises(NotImplementedError, match="does not define"):
        mine.append("key", "more")

    class Half(rdzv.Store):
        def set(self, key, value): ...

    with pytest.raises(TypeError, match="Half is abstract: it does not define get, add"):
        Half()
