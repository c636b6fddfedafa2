"""Test that PyTorch's functions for the interpreter work in workers."""

import pytest

import rdzv

pytest.importorskip("torch.distributed.elastic", reason="this Python has no torch")


def use_them():
    import logging
    import sys

    import torch
    import torch.distributed as dist
    from torch.distributed import rpc
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.distributed.elastic.utils import get_env_variable_or_raise
    from torch.distributed.elastic.utils.api import get_socket_with_port
    from torch.distributed.elastic.utils.data import CyclingIterator, ElasticDistributedSampler
    from torch.distributed.elastic.utils.logging import get_logger
    from torch.distributed.rpc.internal import PythonUDF, RPCExecMode, deserialize, serialize

    assert dist.is_available() and get_env_variable_or_raise("RANK") == str(rdzv.worker.rank())
    assert isinstance(get_logger("name"), logging.Logger)
    with get_socket_with_port() as bound:
        assert bound.getsockname()[1] > 0
    samples = ElasticDistributedSampler(range(10), num_replicas=2, rank=rdzv.worker.rank(), start_index=4)
    assert len(list(samples)) == 3
    assert list(CyclingIterator(2, lambda epoch: iter([epoch]))) == [0, 1]
    assert record(lambda: 5)() == 5
    call = deserialize(*serialize(PythonUDF(abs, (-3,), {})))
    assert call.func(*call.args) == 3 and RPCExecMode.SYNC.value == "sync"
    rpc.init_rpc("w", rank=0, world_size=1, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method="tcp://127.0.0.1:0"))
    try:
        rpc.enable_gil_profiling(True)
        with rpc._server_process_global_profile():
            assert rpc.rpc_sync("w", torch.add, args=(torch.ones(1), 1)).item() == 2
        return "torch" in sys.modules
    finally:
        rpc.shutdown()


def test_functions_of_torch_work_in_workers():
    assert rdzv.launch(use_them, nprocs=2, start="pickle").return_values == {0: True, 1: True}
