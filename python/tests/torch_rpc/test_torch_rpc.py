"""Tests of `rdzv.torch.rpc`: PyTorch's own suite, and the replaced names."""

import subprocess
import sys
import textwrap

from torch_rpc import check

# `cargo xtask test --upstream` runs all others.
ALWAYS = [
    "DistAutogradTest.test_backward_multiple_round_trips",
    "DistAutogradTest.test_trainer_ps",
    "DistOptimizerTest.test_dist_optim",
    "RpcTest.test_add",
    "RpcTest.test_async_function_nested",
    "RpcTest.test_dist_init_decorator",
    "RpcTest.test_nested_rref",
    "RpcTest.test_py_raise_in_user_func",
    "RpcTest.test_py_rref_args_user_share",
    "RpcTest.test_py_udf_remote",
    "RpcTest.test_rref_forward_chain",
    "RpcTest.test_world_size_one",
    "TensorPipeAgentRpcTest.test_infer_backend_from_options",
    "TensorPipeAgentRpcTest.test_rref_get_type_timeout_blocking",
    "TensorPipeAgentRpcTest.test_op_with_invalid_args",
    "ParameterServerTest.test_batch_updating_parameter_server",
    "ReinforcementLearningRpcTest.test_rl_rpc",
]


def test_tests_of_pytorch_pass():
    found = check.outcomes(ALWAYS, timeout=250)
    assert {name: result for name, result in found.items() if result[0] != "passed"} == {}
    assert sorted(found) == sorted(ALWAYS)


def program(source):
    command = [sys.executable, "-c", textwrap.dedent(source)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_a_torch_that_lacks_a_name_is_refused():
    finished = program("""
        import torch.distributed.rpc.api as api
        del api._invoke_rpc_builtin
        import rdzv.torch.rpc
    """)
    assert "ImportError: rdzv.torch.rpc does not fit torch" in finished.stderr, finished.stderr
    assert "torch.distributed.rpc.api has no _invoke_rpc_builtin; use rdzv.rpc" in finished.stderr


def test_torch_own_agent_works_beside_it():
    finished = program("""
        import os, tempfile
        import rdzv.torch.rpc
        import torch, torch.distributed.rpc as rpc
        for number, backend in enumerate(("TENSORPIPE", "RDZV", "TENSORPIPE")):
            backend = rpc.BackendType[backend]
            options = rpc.backend_registry.construct_rpc_backend_options(
                backend, init_method=f"file://{tempfile.mktemp()}"
            )
            rpc.init_rpc("alone", rank=0, world_size=1, backend=backend, rpc_backend_options=options)
            assert rpc.rpc_sync("alone", torch.add, args=(torch.ones(2), 1)).sum() == 4
            rref = rpc.remote("alone", torch.add, args=(torch.ones(2), 1))
            assert rref.to_here().sum() == 4 and isinstance(rref, rpc.PyRRef)
            assert rpc.RRef(5).to_here() == 5
            rpc.shutdown()
        rdzv.torch.rpc.uninstall()
        assert rpc.RRef.__module__ != "rdzv.torch.rpc"
        print("good")
    """)
    assert finished.stdout.strip().endswith("good"), finished.stderr


def test_distributed_autograd_is_that_of_the_backend_in_use():
    finished = program("""
        import tempfile
        import rdzv.torch.rpc
        import torch, torch.distributed.rpc as rpc, torch.distributed.autograd as autograd
        from torch.distributed.autograd import context
        for name in ("RDZV", "TENSORPIPE", "RDZV"):
            backend = rpc.BackendType[name]
            options = rpc.backend_registry.construct_rpc_backend_options(
                backend, init_method=f"file://{tempfile.mktemp()}"
            )
            rpc.init_rpc("alone", rank=0, world_size=1, backend=backend, rpc_backend_options=options)
            with context() as number:
                weights = torch.ones(2, requires_grad=True)
                autograd.backward(number, [rpc.rpc_sync("alone", torch.mul, args=(weights, 3)).sum()])
                kind = type(autograd._retrieve_context(number)).__module__
                print(name, autograd.get_gradients(number)[weights].tolist(), kind)
            rpc.shutdown()
        rdzv.torch.rpc.uninstall()
        assert autograd.backward is torch._C._distributed_autograd.backward
    """)
    own, torchs = "rdzv.torch._autograd", "torch._C._distributed_autograd"
    expected = [("RDZV", own), ("TENSORPIPE", torchs), ("RDZV", own)]
    assert finished.stdout.splitlines() == [f"{name} [3.0, 3.0] {kind}" for name, kind in expected], (
        finished.stdout + finished.stderr
    )


ALONE = """
    import pickle, tempfile
    import rdzv.torch.rpc
    import torch, torch.distributed.rpc as rpc
    from torch.distributed.rpc import rpc_sync
    options = rpc.backend_registry.construct_rpc_backend_options(
        rpc.BackendType.RDZV, init_method=f"file://{tempfile.mktemp()}"
    )
    rpc.init_rpc("alone", rank=0, world_size=1, backend=rpc.BackendType.RDZV, rpc_backend_options=options)
"""


def test_calls_that_wait_are_as_torch_has_them():
    finished = program(ALONE + """
    class Square(torch.nn.Module):
        def forward(self, x):
            return x * x

    class Text:
        def __init__(self, text):
            self.text = text

    def scripted():
        return torch.jit.trace(Square(), torch.ones(1))

    def failing(text):
        raise KeyError(text)

    def later():
        import time
        time.sleep(5)

    def back(*args, **kwargs):
        return args, kwargs

    assert rpc_sync("alone", back) == ((), {})
    assert rpc_sync(0, back, args=[1, "a"], kwargs={"b": None}) == ((1, "a"), {"b": None})
    assert rpc_sync(rpc.get_worker_info("alone"), torch.add, args=(torch.ones(2), 1)).tolist() == [2, 2]
    (tensor, text), _ = rpc_sync("alone", back, args=(torch.arange(6).view(2, 3).t(), Text("t")))
    assert tensor.tolist() == [[0, 3], [1, 4], [2, 5]] and text.text == "t"
    rref = rpc.RRef(torch.ones(1))
    (other,), _ = rpc_sync("alone", back, args=(rref,))
    assert other.to_here().item() == 1 and isinstance(other, rpc.RRef)
    # torch's pickler supports objects that ours does not.
    assert rpc_sync("alone", scripted)(torch.tensor([3.0])).item() == 9
    for call, kind, words in (
        (lambda: rpc_sync("alone", failing, args=("weights",)), KeyError, "weights"),
        (lambda: rpc_sync("alone", back, args=(lambda: 0,)), Exception, "lambda"),
        (lambda: rpc_sync("alone", later, timeout=0.1), RuntimeError, "RPC ran for more than set timeout"),
        (lambda: rpc_sync("unknown", back), RuntimeError, "unknown"),
        (lambda: rpc_sync("alone", 5), TypeError, "function should be callable"),
        (lambda: rpc_sync(None, back), ValueError, "Cannot get WorkerInfo from name None"),
    ):
        try:
            call()
        except Exception as error:
            assert type(error) is kind or kind is Exception, (type(error), error)
            assert words in str(error), (words, error)
        else:
            raise AssertionError(words)
    # The callee no longer has the function at that time.
    pickled, found = pickle.dumps((back, (), {}), 5), back
    del back
    native = rdzv.torch.rpc._agent.current()
    try:
        rdzv.torch.rpc.internal._handle_exception(
            rdzv.torch.rpc._read(*native.call_raw("alone", "rdzv.torch.call", pickled, [], [], None))
        )
    except AttributeError as error:
        assert "RPC pickler does not serialize" in str(error), error
    else:
        raise AssertionError("it is not there")
    rpc.shutdown()
    print("good")
    """)
    assert finished.stdout.strip().endswith("good"), finished.stderr


def test_an_agent_of_rdzv_rpc_takes_no_calls_of_torch():
    """Checks the refusal: torch's pickles may name anything."""
    finished = program("""
        import os, pickle
        import rdzv, rdzv.torch.rpc
        from rdzv import rpc
        from rdzv.torch.rpc import _kept_udf, _operate, _udf

        class Worse:
            def __reduce__(self):
                return os.write, (1, b"it ran\\n")

        server = rdzv.StoreServer()
        rpc.init_rpc("alone", rank=0, world_size=1, store=rdzv.TCPStore(server.host, server.port))
        agent, worse = rpc._agent.current(), pickle.dumps((Worse(), (), {}), 5)
        for call in (
            lambda: rpc.rpc_sync("alone", _udf, args=(worse, [], [], [])),
            lambda: rpc.remote("alone", _kept_udf, args=(worse, [], [], [])).to_here(),
            lambda: rpc.rpc_sync("alone", _operate, args=("aten::add", (1, 2), {})),
            lambda: agent.call_raw("alone", "rdzv.torch.call", worse, [], [], None),
        ):
            try:
                call()
            except rdzv.RpcError as error:
                assert "does not take calls of torch" in str(error), error
            else:
                print("admitted", flush=True)
        rpc.shutdown()
        server.close()
        print("good")
    """)
    assert finished.stdout.splitlines() == ["good"], finished.stdout + finished.stderr


PAIR = """
    import os
    import rdzv.torch.rpc
    import torch, torch.distributed.rpc as rpc

    def joined(name, rank, path, world_size=None, **options):
        # Every life has the same prefix in the store.
        rpc._init_counter = 0
        backend = rpc.BackendType.RDZV
        options = rpc.backend_registry.construct_rpc_backend_options(backend, init_method=f"file://{path}", **options)
        rpc.init_rpc(name, rank=rank, world_size=world_size, backend=backend, rpc_backend_options=options)
"""


def test_a_hundred_newcomers_are_known_to_all_when_init_rpc_returns(tmp_path):
    finished = program(PAIR + f"""
    path = {str(tmp_path / "store")!r}

    def back(name):
        return rpc.rpc_sync(name, torch.add, args=(torch.ones(1), 1)).item()

    ready, ended = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        joined("w0", 0, path)
        os.write(ready[1], b"x")
        os.read(ended[0], 1)
        rpc.shutdown()
        os._exit(0)
    os.read(ready[0], 1)
    for round in range(100):
        joined("w1", 1, path)
        assert rpc.rpc_sync("w0", back, args=("w1",)) == 2
        rpc.shutdown()
    os.write(ended[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    print("good")
    """)
    assert finished.stdout.strip().endswith("good"), finished.stderr


def test_calls_nested_deeper_than_there_are_threads_progress(tmp_path):
    finished = program(PAIR + f"""
    def nested(depth, how):
        if depth == 0:
            return 0
        to = "w1" if rpc.get_worker_info().name == "w0" else "w0"
        if how == "sync":
            return 1 + rpc.rpc_sync(to, nested, args=(depth - 1, how))
        if how == "async":
            return 1 + rpc.rpc_async(to, nested, args=(depth - 1, how)).wait()
        return 1 + rpc.remote(to, nested, args=(depth - 1, how)).to_here()

    child = os.fork()
    name, rank = ("w1", 1) if child else ("w0", 0)
    joined(name, rank, {str(tmp_path / "store")!r}, 2, num_worker_threads=1)
    if child:
        for how in ("sync", "async", "remote"):
            assert rpc.rpc_sync("w0", nested, args=(50, how), timeout=60) == 50
    rpc.shutdown()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("good")
    """)
    assert finished.stdout.strip().endswith("good"), finished.stderr
