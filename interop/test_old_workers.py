"""Tests of rdzv's server with requests of older PyTorch releases, as bytes.

| release | what is different |
|---|---|
| 2.2 to 2.4 | no PING after VALIDATE |
| up to 2.5 | the worker puts `worker/attempt_N/` before every key, which the store treats like any other key |
| before 2.2 | no VALIDATE, other numbers: the server must refuse the worker immediately |
"""

import socket
import struct

import pytest

from conftest import connect

VALIDATE = b"\x00" + struct.pack("<I", 0x3C85F7CE)
SET, GET, ADD, CHECK, WAIT, DELETE_KEY, APPEND = 1, 3, 4, 5, 6, 8, 9


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


class Raw:
    """Connection that sends the given bytes."""

    def __init__(self, server):
        self.socket = socket.create_connection((server.host, server.port), timeout=30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, *parts: bytes):
        self.socket.sendall(b"".join(parts))

    def receive(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            assert part, "the server closed the connection"
            data += part
        return data

    def is_closed_by_server(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def test_a_client_that_never_pings_is_served(rdzv_server):
    with Raw(rdzv_server) as old:
        old.send(VALIDATE)
        old.send(bytes([ADD]), text(b"init/"), struct.pack("<q", 1))
        assert old.receive(8) == struct.pack("<q", 1)
        old.send(bytes([SET]), text(b"/key"), text(b"value"))
        old.send(bytes([WAIT]), struct.pack("<Q", 1), text(b"/key"))
        assert old.receive(1) == b"\x00"
        old.send(bytes([GET]), text(b"/key"))
        assert old.receive(13) == text(b"value")
        assert connect(rdzv_server).get("key") == b"value"


def test_the_prefix_of_an_older_worker_is_part_of_a_plain_key(rdzv_server):
    with Raw(rdzv_server) as old:
        key = b"/worker/attempt_0/default_pg/0//cpu//0/0"
        old.send(VALIDATE, bytes([SET]), text(key), text(b"address"))
        old.send(bytes([CHECK]), struct.pack("<Q", 1), text(key))
        assert old.receive(1) == b"\x00"
        old.send(bytes([APPEND]), text(key), text(b"!"))
        old.send(bytes([DELETE_KEY]), text(b"/worker/attempt_0"))
        assert old.receive(8) == struct.pack("<q", 0), "a prefix is no key"
    new = connect(rdzv_server)
    assert new.get("worker/attempt_0/default_pg/0//cpu//0/0") == b"address!"


def test_an_old_waiter_is_woken_by_a_new_client(rdzv_server):
    with Raw(rdzv_server) as old:
        old.send(VALIDATE, bytes([ADD]), text(b"/n"), struct.pack("<q", 1))
        assert old.receive(8) == struct.pack("<q", 1)
        old.send(bytes([WAIT]), struct.pack("<Q", 2), text(b"/a"), text(b"/b"))
        new = connect(rdzv_server)
        new.set("a", "1")
        new.set("b", "2")
        assert old.receive(1) == b"\x00"


@pytest.mark.parametrize(
    "opening",
    [
        bytes([0]) + text(b"/key") + text(b"value"),  # SET of 2.1
        bytes([3]) + text(b"init/") + struct.pack("<q", 1),  # ADD of 2.1
        b"\x00" + struct.pack("<I", 0xDEADBEEF),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["set of 2.1", "add of 2.1", "wrong magic", "a browser"],
)
def test_what_is_no_such_client_is_refused_at_once_and_changes_nothing(rdzv_server, opening):
    with Raw(rdzv_server) as other:
        other.send(opening)
        assert other.is_closed_by_server()
    assert connect(rdzv_server).num_keys() == 0


def test_a_request_may_come_byte_by_byte(rdzv_server):
    with Raw(rdzv_server) as slow:
        slow.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message = VALIDATE + bytes([SET]) + text(b"/key") + text(b"value")
        for byte in message + bytes([GET]) + text(b"/key"):
            slow.send(bytes([byte]))
        assert slow.receive(13) == text(b"value")
