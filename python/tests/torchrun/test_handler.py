"""Tests of torchrun with `--rdzv-backend rdzv`."""

import os
import subprocess
import sys
import textwrap

import pytest
from ports import free_port

LIMIT_SECONDS = 120

WORKER = """
    import os, sys, torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    seen = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(seen)
    print("sum", int(seen.item()), "of", dist.get_world_size(), "restart", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    if len(sys.argv) > 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 0:
        sys.exit(3)
    dist.barrier()
    dist.destroy_process_group()
"""


def agents(tmp_path, count, *arguments, restarts=0):
    worker = tmp_path / "worker.py"
    worker.write_text(textwrap.dedent(WORKER))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "rdzv", "--rdzv-endpoint", f"localhost:{free_port()}",
        "--rdzv-id", "job", "--nnodes", str(count), "--nproc-per-node", "1", "--max-restarts", str(restarts),
        str(worker), *arguments,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(count)
    ]


def ended(processes):
    try:
        return [(process.communicate(timeout=LIMIT_SECONDS), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("count", [1, 2])
def test_agents_of_torchrun_meet(tmp_path, count):
    for (out, err), code in ended(agents(tmp_path, count)):
        assert code == 0, err
        assert f"sum {sum(range(count))} of {count} restart 0" in out


def test_agents_form_again_after_a_failure(tmp_path):
    results = ended(agents(tmp_path, 2, "fail", restarts=1))
    for (out, err), code in results:
        assert code == 0, err
    # The count is that of the agent whose worker failed. The other agent only meets it again, and
    # without that meeting neither ends with 0.
    assert any("sum 1 of 2 restart 1" in out for (out, _), _ in results), results


@pytest.mark.parametrize(
    "first",
    ["rdzv.torch.elastic", "rdzv.torch", "rdzv.torch.rpc", "torch.distributed.elastic.rendezvous", "torch.distributed.run"],
)
def test_any_order_of_imports_registers_the_backend(first):
    program = f"""
        import {first}
        import rdzv.torch.elastic
        from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
        made = get_rendezvous_handler(RendezvousParameters("rdzv", "localhost:0", "job", 1, 1))
        assert isinstance(made, rdzv.torch.elastic.RdzvRendezvousHandler)
        rendezvous_handler_registry.register("rdzv", rdzv.torch.elastic.handler())
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
