"""Tests of pickles that no worker should read.

In registered mode none of them runs anything, or builds an object.
"""

import io
import os
import pickle
import pickletools
import struct

import pytest
from rpc import served
from rpc.peers import group, wait_for

from rdzv import _rdzv, rpc
from rdzv.rpc import _values

MARKER = "/tmp/rdzv-test-of-pickles-{}"


def short(text):
    text = text.encode()
    return b"\x8c" + bytes([len(text)]) + text


def named(module, name, *arguments):
    """Makes a pickle that calls the function that it names."""
    body = b"\x80\x05" + short(module) + short(name) + b"\x93("
    for argument in arguments:
        body += short(argument) if isinstance(argument, str) else b"M" + struct.pack("<H", argument)
    return body + b"tR."


class Reduced:
    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def reduced(*arguments, protocol=5):
    return pickle.dumps(Reduced(*arguments), protocol=protocol)


COMMAND = "touch {marker}"


def pickles(marker):
    """Returns pickles by name; those that can run code would make `marker`."""
    touch = COMMAND.format(marker=marker)
    code = f"open({marker!r}, 'w')"
    yield "os.system", named("os", "system", touch)
    yield "posix.system", named("posix", "system", touch)
    yield "subprocess.Popen", reduced(__import__("subprocess").Popen, (["touch", marker],))
    yield "builtins.eval", reduced(eval, (code,))
    yield "builtins.exec", reduced(exec, (code,))
    yield "builtins.open", reduced(open, (marker, "w"))
    yield "builtins.compile", reduced(compile, (code, "x", "exec"))
    yield "builtins.getattr", reduced(getattr, (os, "system")) if False else named("builtins", "getattr", "x", "y")
    yield "builtins.__import__", named("builtins", "__import__", "os")
    yield "importlib", named("importlib", "import_module", "os")
    yield "CVE-2024-7804: a function of a peer's choice with its arguments", pickle.dumps((os.system, (touch,), {}), 5)
    yield "a class of torch that runs what it is given", named("torch.distributed.rpc.internal", "PythonUDF", "a", "b", "c")
    yield "torch.load", named("torch", "load", marker)
    yield "numpy.load", named("numpy", "load", marker)
    yield "runpy", named("runpy", "run_path", marker)
    yield "a dotted name", named("collections", "OrderedDict.fromkeys.__self__", "x")
    yield "a dotted name of ours", named("rdzv.rpc._values", "_tensor.__globals__", "x")
    yield "a function of a module of ours", named("rdzv.rpc._values", "load", "x")
    yield "a registered function, which only calls may call", named("rpc.served", "die")
    yield "a name by the memo", (
        b"\x80\x05" + short("os") + b"\x94" + short("system") + b"\x940h\x00h\x01\x93(" + short(touch) + b"tR."
    )
    yield "an old name", b"\x80\x05cos\nsystem\n(" + short(touch) + b"tR."
    yield "protocol 0", b"cos\nsystem\n(S'" + touch.encode() + b"'\ntR."
    yield "protocol 2", reduced(eval, (code,), protocol=2)
    yield "an instance, as protocol 0 has it", b"\x80\x05(" + short(touch) + b"ios\nsystem\n."
    yield "an extension code", b"\x80\x05\x82\x01."
    yield "a persistent id", b"\x80\x05" + short("x") + b"Q."
    yield "a change of a registered class", (
        b"\x80\x05" + short("rpc.served") + short("Point") + b"\x93" + b"N}" + short("x") + b"Ks\x86b."
    )
    yield "a change of a function of ours", (
        b"\x80\x05" + short("rdzv.rpc._values") + short("_tensor") + b"\x93" + b"N}" + short("__doc__") + b"K\x01s\x86b."
    )
    yield "a length that lies", b"\x80\x05B" + struct.pack("<I", 1 << 31) + b"x."
    yield "a place of the memo that was never filled", b"\x80\x05Nr" + struct.pack("<I", 1 << 31) + b"."
    yield "too deep", b"\x80\x05" + b"]" * 100_000 + b"a" * 99_999 + b"."
    yield "bytes behind its end", pickle.dumps(((), {}), 5) + b"N."
    yield "no end", pickle.dumps(((), {}), 5)[:-1]
    yield "more buffers than there are", b"\x80\x05\x97."
    yield "an empty stack", b"\x80\x05aR."
    yield "nothing", b"\x80\x05"


COUNT = len([*pickles("x")])


def test_a_hostile_pickle_runs_nothing_and_ends_the_connection(tmp_path):
    assert COUNT >= 30
    marker = str(tmp_path / "ran")

    def connected():
        # The connection may still be ending, which the answer to the refused call overtakes.
        try:
            return rpc.rpc_sync("w1", served.add, args=(1, 1)) == 2
        except rpc.PeerLost as lost:
            assert lost.retryable
            return False

    def caller():
        agent = rpc._agent.current()
        rpc.rpc_sync("w1", served.keep_warnings)
        for what, body in pickles(marker):
            # The previous connection may end only now, and this call with it.
            raised = None
            while raised is None or isinstance(raised.value, rpc.PeerLost):
                wait_for(connected, "there is no other connection")
                # Nothing is left of the other calls on the same connection.
                other = rpc.rpc_async("w1", served.slow, args=(60,))
                with pytest.raises(rpc.RpcError) as raised:
                    agent._native.call_sync("w1", "rpc.served:echo", body, [], [], 10, None)
            assert raised.value.kind == "Protocol", (what, raised.value)
            with pytest.raises(rpc.PeerLost, match="does not admit|closed the connection"):
                other.wait(timeout=30)
            # The same pickle as a call for a value that is kept.
            wait_for(connected, "there is no other connection")
            kept = agent._native.remote("w1", "rpc.served:echo", body, [], [], 10, None)
            future = agent._native.fetch(kept, 10, None)
            assert future.wait(30) and future.has_failed, what
            # The same pickle as a result of a peer, which must not run at the caller either.
            with pytest.raises((pickle.UnpicklingError, ValueError)):
                _values.load(body, [], [])
        wait_for(connected, "there is no other connection")
        # There is one warning each, with the caller and the name.
        warnings = [text for text in rpc.rpc_sync("w1", served.warnings) if text.startswith("a call of w0 was refused")]
        assert len(warnings) == 2 * COUNT, warnings
        assert any("posix.system" in text for text in warnings)
        # The worker still works.
        assert rpc.rpc_sync("w1", served.echo, args=(served.Point(1, 2),)) == served.Point(1, 2)

    group([caller, lambda: None])
    assert not os.path.exists(marker)


def test_what_a_worker_sends_to_itself_leaves_its_connection(tmp_path):
    def alone():
        with pytest.raises(rpc.RpcError, match="refers to rpc.served.Own"):
            rpc.rpc_sync("w0", served.echo, args=(served.Own("x"),))
        assert rpc.rpc_sync("w0", served.add, args=(1, 1)) == 2

    group([alone])


def test_they_would_run_if_they_were_read(tmp_path):
    """Checks that these pickles would run if they were read."""
    marker = tmp_path / "ran"
    ran = 0
    for what, body in pickles(str(marker)):
        if what.startswith(("CVE", "torch", "numpy", "runpy", "a ")):
            continue
        try:
            pickle.loads(body)
        except Exception:
            pass
        if marker.exists():
            ran += 1
            marker.unlink()
    assert ran >= 5


def test_the_names_of_what_python_pickles_are_found():
    values = [
        1, None, (1, 2, 3, 4), [[]], {"a": {1, 2}}, frozenset({1}), b"x" * 300, "é" * 300, 1 << 70, -5, 2.5, True,
        bytearray(b"x"), [*range(2000)], {number: str(number) for number in range(2000)},
    ]
    for value in values:
        assert _rdzv.pickle_globals(pickle.dumps(value, 5), 0) == []
    out = io.StringIO()
    body = pickle.dumps([served.Point(1, 2), ValueError("x"), served.Point(1, 2)], 5)
    pickletools.dis(body, out)
    assert _rdzv.pickle_globals(body, 0) == [("rpc.served", "Point"), ("builtins", "ValueError")]


def test_what_nobody_registered_does_not_come_through():
    def caller():
        with pytest.raises(rpc.RpcError, match="refers to rpc.served.Own, which this worker does not admit") as raised:
            rpc.rpc_sync("w1", served.echo, args=(served.Own("x"),))
        assert raised.value.kind == "Protocol"

    group([caller, lambda: None])
