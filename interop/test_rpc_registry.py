"""Tests that PyTorch's RPC options have the rules and defaults of rdzv.

`crates/calls/rpc-proto/tests/all/device_rules.rs` tests rdzv with the same table, and
`crates/calls/rpc/src/options/tests.rs` with the same defaults. No test here needs an accelerator,
because the rules concern names of devices.
"""

import json
import pathlib
import re

import pytest
import torch
import torch.distributed.rpc as rpc
from torch.distributed.rpc import backend_registry

TABLE = pathlib.Path(__file__).parent.parent / "crates/calls/rpc-proto/tests/golden/device_rules.json"
CASES = json.loads(TABLE.read_text())


def plain(text):
    """Returns devices and keys in their own format, not in that of a Python list."""
    text = re.sub(r"device\(type='(\w+)', index=(\d+)\)", r"\1:\2", text)
    text = re.sub(r"device\(type='(\w+)'\)", r"\1", text)
    return re.sub(r"dict_keys\((\[.*?\])\)", r"\1", text)


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_the_rules_of_devices_are_pytorchs(case):
    workers = case["workers"]

    def maps(worker):
        table = worker["device_maps"].items()
        pairs = lambda map: {torch.device(k): torch.device(v) for k, v in map.items()}
        return {target: pairs(map) for target, map in table}

    arguments = (
        [worker["name"] for worker in workers],
        {worker["name"]: worker["device_count"] for worker in workers},
        {worker["name"]: maps(worker) for worker in workers},
        {worker["name"]: [torch.device(d) for d in worker["devices"]] for worker in workers},
        case["static"],
    )
    if case["error"] is None:
        backend_registry._validate_device_maps(*arguments)
        return
    with pytest.raises(ValueError) as refused:
        backend_registry._validate_device_maps(*arguments)
    assert plain(str(refused.value)) == case["error"]


def test_the_channels_that_ours_takes_are_pytorchs():
    known = ["basic", "cma", "mpt_uv"]
    if torch.version.cuda:
        known += ["cuda_basic", "cuda_gdr", "cuda_ipc", "cuda_xth"]
    for channel in known:
        rpc.TensorPipeRpcBackendOptions(_channels=[channel])
    with pytest.raises(RuntimeError, match="^Unknown channel: pigeon"):
        rpc.TensorPipeRpcBackendOptions(_channels=["pigeon"])
    for transport in ["shm", "uv", "ibv"]:
        rpc.TensorPipeRpcBackendOptions(_transports=[transport])
    with pytest.raises(RuntimeError, match="^Unknown transport: pigeon"):
        rpc.TensorPipeRpcBackendOptions(_transports=["pigeon"])


def test_the_defaults_that_ours_takes_are_pytorchs():
    options = rpc.TensorPipeRpcBackendOptions()
    assert options.rpc_timeout == 60
    assert options.init_method == "env://"
    assert options.num_worker_threads == 16
    assert options.device_maps == {} and options.devices == []
    with pytest.raises(RuntimeError, match="^num_worker_threads must be positive, got 0"):
        rpc.TensorPipeRpcBackendOptions(num_worker_threads=0)
    with pytest.raises(RuntimeError, match="^RPC Timeout must be non-negative"):
        rpc.TensorPipeRpcBackendOptions(rpc_timeout=-0.5)
    assert backend_registry.backend_registered("TENSORPIPE")
    assert not backend_registry.backend_registered("tensorpipe")
    assert str(rpc.BackendType.TENSORPIPE) == "BackendType.TENSORPIPE"


def test_options_of_another_type_are_refused_in_the_words_that_ours_uses():
    with pytest.raises(TypeError) as refused:
        backend_registry._tensorpipe_init_backend_handler(
            torch.distributed.HashStore(), "w0", 0, 1, object()
        )
    assert re.match(
        r"`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`\. <object", str(refused.value)
    )
