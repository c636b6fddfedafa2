"""Tests of distributed autograd under `BackendType.RDZV`.

They cover gradients, contexts and failures.
"""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

GRADIENTS = Path(__file__).resolve().parent / "gradients.py"


def gradients(backend):
    command = [sys.executable, "-W", "ignore", GRADIENTS, backend]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def local():
    return gradients("local")


def test_gradients_over_workers_are_those_of_the_same_model_in_one_process(local):
    assert gradients("RDZV") == local


def test_gradients_are_those_of_torch_own_backend(local):
    """Checks that torch computes the gradients that this suite expects."""
    found = gradients("TENSORPIPE")
    assert found == {name: local[name] for name in found}
    assert local.keys() - found.keys() == {"partly_used", "called_back"}


# Rank 0 runs `main`, and all ranks leave together.
WORKERS = """
import os, sys, tempfile, threading, time
import rdzv.torch.rpc
import torch, torch.distributed.rpc as rpc, torch.distributed.autograd as autograd

def square(x):
    return x * x

def hop(to, x):
    return rpc.rpc_sync(to, square, args=(x,)) if to else square(x)

def contexts():
    return int(autograd._get_debug_info()["num_autograd_contexts"])

def raised(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} did not fail")

leaving = threading.Event()

def leave():
    leaving.set()

def work(rank, folder, clean):
    torch.set_num_threads(1)
    options = rpc.backend_registry.construct_rpc_backend_options(
        rpc.BackendType.RDZV, init_method=f"file://{folder}/store"
    )
    rpc.init_rpc(
        f"w{rank}", rank=rank, world_size=3, backend=rpc.BackendType.RDZV, rpc_backend_options=options
    )
    if rank == 0:
        main()
        print("good", flush=True)
    elif not clean:
        leaving.wait(60)
    rpc.shutdown(graceful=clean)

def start(clean=True):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(work, (folder, clean), nprocs=3, start_method="fork")
"""


def workers(source, timeout=400):
    command = [sys.executable, "-W", "ignore", "-c", WORKERS + textwrap.dedent(source)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert finished.stdout.splitlines()[-1:] == ["good"], finished.stdout + finished.stderr


def test_a_context_ends_on_all_workers_that_took_part():
    workers("""
        def main():
            x = torch.ones(2, requires_grad=True)
            with autograd.context() as number:
                autograd.backward(number, [rpc.rpc_sync("w1", hop, args=("w2", x)).sum()])
                assert autograd.get_gradients(number)[x].tolist() == [2, 2]
                assert [contexts(), *(rpc.rpc_sync(name, contexts) for name in ("w1", "w2"))] == [1, 1, 1]
            until = time.monotonic() + 30
            # This thread has no context any more, so its calls create none.
            while any(rpc.rpc_sync(name, contexts) for name in ("w0", "w1", "w2")):
                assert time.monotonic() < until, "contexts are left"
            assert "Could not find autograd context with id" in raised(RuntimeError, autograd.get_gradients, number)
            # Calls without a context carry no gradients, as in torch.
            assert rpc.rpc_sync("w1", square, args=(x,)).grad_fn is None

        start()
    """)


def test_a_call_that_is_late_does_not_bring_its_context_back():
    workers("""
        def main():
            _autograd = rdzv.torch.rpc._autograd
            x = torch.ones(2, requires_grad=True)
            with autograd.context() as number:
                context = autograd._current_context()
            with _autograd.inside(context):
                result = rpc.rpc_sync("w0", square, args=(x,))
            assert result.tolist() == [1, 1] and contexts() == 0, (result, contexts())

        start()
    """)


def test_a_graph_is_walked_again_if_it_was_kept():
    workers("""
        def main():
            x = torch.full((2,), 3.0, requires_grad=True)
            with autograd.context() as number:
                loss = rpc.rpc_sync("w1", hop, args=("w2", x * 1)).sum()
                autograd.backward(number, [loss], retain_graph=True)
                autograd.backward(number, [loss])
                assert autograd.get_gradients(number)[x].tolist() == [12, 12]
                assert "a second time" in raised(RuntimeError, autograd.backward, number, [loss])
                # The backward pass has not used the other graph of the context.
                other = rpc.rpc_sync("w1", square, args=(x,)).sum()
                autograd.backward(number, [other])
                assert autograd.get_gradients(number)[x].tolist() == [18, 18]
            assert x.grad is None

        start()
    """)


def test_gradients_of_two_tensors_are_not_in_the_same_memory():
    workers("""
        def main():
            x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
            with autograd.context() as number:
                autograd.backward(number, [rpc.rpc_sync("w1", square, args=(x + y,)).sum()])
                found = autograd.get_gradients(number)
                found[x].zero_()
                assert found[y].tolist() == [4, 4]

        start()
    """)


def test_a_tensor_that_came_by_rpc_is_no_leaf():
    workers("""
        def main():
            x = torch.ones(2, requires_grad=True)
            with autograd.context() as number:
                result = rpc.rpc_sync("w1", square, args=(x,))
                result.mul_(5)
                autograd.backward(number, [result.sum()])
                assert autograd.get_gradients(number)[x].tolist() == [10, 10]
                result = rpc.rpc_sync("w1", square, args=(x,))
                assert "reaches its sender only through" in raised(RuntimeError, result.sum().backward)

        start()
    """)


def test_a_failure_in_a_backward_pass_names_the_worker():
    workers("""
        class Failing(torch.autograd.Function):
            fails = True

            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, gradient):
                if Failing.fails:
                    raise ValueError("on purpose")
                return gradient

        def failing(x):
            return Failing.apply(x) * 2

        def mend():
            Failing.fails = False

        def relayed(x):
            return rpc.rpc_sync("w2", failing, args=(x,))

        def main():
            x = torch.ones(2, requires_grad=True)
            with autograd.context() as number:
                loss = rpc.rpc_sync("w1", relayed, args=(x,)).sum()
                text = raised(RuntimeError, autograd.backward, number, [loss], retain_graph=True)
                assert "Error on Node 2" in text and "on purpose" in text, text
                rpc.rpc_sync("w2", mend)
                autograd.backward(number, [loss])
                assert autograd.get_gradients(number)[x].tolist() == [2, 2]

        start()
    """)


def test_a_backward_pass_ends_when_a_worker_is_lost():
    workers("""
        def end():
            os._exit(0)

        def main():
            x = torch.ones(2, requires_grad=True)
            with autograd.context() as number:
                loss = rpc.rpc_sync("w1", hop, args=("w2", x)).sum()
                raised(RuntimeError, rpc.rpc_sync, "w2", end)
                text = raised(RuntimeError, autograd.backward, number, [loss])
                assert "w2" in text, text
            # It continues with the other workers.
            with autograd.context() as number:
                autograd.backward(number, [rpc.rpc_sync("w1", square, args=(x,)).sum()])
                assert autograd.get_gradients(number)[x].tolist() == [2, 2]
            rpc.rpc_async("w1", leave)

        start(clean=False)
    """)


def test_references_are_roots():
    workers("""
        def total(x):
            return (x * x).sum()

        def main():
            x = torch.ones(2, requires_grad=True)
            with autograd.context() as number:
                kept = rpc.remote("w1", total, args=(x,))
                kept.backward(number)
                assert autograd.get_gradients(number)[x].tolist() == [2, 2]
                assert "'dist_autograd_ctx_id'" in raised(RuntimeError, kept.backward)
            rpc.RRef(total(x)).backward()
            assert x.grad.tolist() == [2, 2]

        start()
    """)


def test_data_parallel_modules_are_refused_in_words():
    """Checks the refusal: gradients would silently not be averaged."""
    workers("""
        def main():
            with tempfile.TemporaryDirectory() as folder:
                torch.distributed.init_process_group(
                    "gloo", init_method=f"file://{folder}/group", rank=0, world_size=1
                )
                module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
                module(torch.ones(1, 2)).sum().backward()
                with autograd.context(), torch.no_grad():
                    module(torch.ones(1, 2))
                with autograd.context():
                    text = raised(NotImplementedError, module, torch.ones(1, 2))
                    assert "DistributedDataParallel" in text and "BackendType.TENSORPIPE" in text, text
                torch.distributed.destroy_process_group()

        start()
    """)
