"""Tests of guarantees that rdzv's server adds for PyTorch's client."""

import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from conftest import RdzvServer, connect

SHORT = timedelta(milliseconds=200)


def test_a_failed_compare_set_on_an_absent_key_wakes_nobody(rdzv_server):
    waiter = connect(rdzv_server)
    writer = connect(rdzv_server)
    with ThreadPoolExecutor(max_workers=1) as pool:
        found = pool.submit(waiter.get, "key")
        assert writer.compare_set("key", "something", "else") == b"something"
        assert writer.compare_set("key", "", "real") == b"real"
        assert found.result(30) == b"real"


def test_a_waiter_served_by_a_queue_gets_no_stray_answer_later(rdzv_server):
    popper = connect(rdzv_server)
    pusher = connect(rdzv_server)
    with ThreadPoolExecutor(max_workers=1) as pool:
        first = pool.submit(popper.queue_pop, "q")
        pusher.queue_push("q", "one")
        assert first.result(30) == b"one"
        second = pool.submit(popper.wait, ["other"], timedelta(milliseconds=500))
        pusher.queue_push("q", "two")
        with pytest.raises(dist.DistStoreError, match="wait timeout"):
            second.result(30)
    assert popper.queue_pop("q") == b"two"


def test_each_push_wakes_one_of_many_poppers(rdzv_server):
    poppers = [connect(rdzv_server) for _ in range(8)]
    pusher = connect(rdzv_server)
    with ThreadPoolExecutor(max_workers=8) as pool:
        items = [pool.submit(popper.queue_pop, "q") for popper in poppers]
        for n in range(8):
            pusher.queue_push("q", str(n))
        found = sorted(item.result(30) for item in items)
    assert found == [str(n).encode() for n in range(8)]


def test_stopping_the_server_is_quick_and_clean_with_clients_waiting():
    server = RdzvServer()
    clients = [connect(server) for _ in range(4)]
    with ThreadPoolExecutor(max_workers=4) as pool:
        waiting = [pool.submit(client.get, "never") for client in clients]
        clients_seen = connect(server)
        clients_seen.set("x", "y")
        assert clients_seen.get("x") == b"y"
        finished = server.stop()
        assert finished.stderr == ""
        for wait in waiting:
            with pytest.raises(dist.DistNetworkError):
                wait.result(30)


def test_a_killed_server_is_a_network_error_not_a_hang():
    server = RdzvServer()
    client = connect(server)
    client.set("key", "value")
    server.running.process.send_signal(signal.SIGKILL)
    server.running.finish(15)
    with pytest.raises(dist.DistNetworkError):
        for _ in range(3):
            client.get("key")


def test_an_interrupt_stops_the_server_too():
    server = RdzvServer()
    server.running.process.send_signal(signal.SIGINT)
    assert server.running.finish(15).code in (0, 130, -signal.SIGINT)
