"""`rdzv.torch.rpc`: tests of PyTorch's own suite, and the names that are replaced."""

import subprocess
import sys
import textwrap

from torch_rpc import check

# All others run by `cargo xtask test --upstream`.
ALWAYS = [
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
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


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


def test_distributed_autograd_is_refused_in_words():
    """Its contexts would be made, and no gradient would pass a call."""
    finished = program("""
        import tempfile
        import rdzv.torch.rpc
        import torch, torch.distributed.rpc as rpc, torch.distributed.autograd as autograd
        from torch.distributed.autograd import context
        for name in ("RDZV", "TENSORPIPE"):
            backend = rpc.BackendType[name]
            options = rpc.backend_registry.construct_rpc_backend_options(
                backend, init_method=f"file://{tempfile.mktemp()}"
            )
            rpc.init_rpc("alone", rank=0, world_size=1, backend=backend, rpc_backend_options=options)
            try:
                with context() as number:
                    weights = torch.ones(2, requires_grad=True)
                    autograd.backward(number, [rpc.rpc_sync("alone", torch.mul, args=(weights, 3)).sum()])
                    print(name, autograd.get_gradients(number)[weights].tolist())
            except NotImplementedError as error:
                print(error)
            rpc.shutdown()
    """)
    assert finished.stdout.splitlines() == [
        "distributed autograd is not offered by BackendType.RDZV; use BackendType.TENSORPIPE for it",
        "TENSORPIPE [3.0, 3.0]",
    ], finished.stdout + finished.stderr
