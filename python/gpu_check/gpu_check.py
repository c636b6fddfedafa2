"""Check of CUDA tensors on a machine with a GPU.

It needs only PyTorch and a wheel of rdzv.

``python gpu_check.py --wheel FILE --out FILE`` unpacks the wheel, runs each section in separate
processes with a time limit, and writes a page of Markdown. It ends within six minutes.
"""

import argparse
import datetime
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

TOTAL_SECONDS = 350
MIB = 1 << 20


# Workers
# --------------------------------------------------------------------------------------------------


def join(backend, rank, folder, **ours):
    """Joins a group of two workers on one GPU."""
    import torch.distributed.rpc as rpc

    other = f"w{1 - rank}"
    kind = rpc.BackendType[backend]
    options = rpc.backend_registry.construct_rpc_backend_options(
        kind, init_method=f"file://{folder}/{backend}", rpc_timeout=60
    )
    if backend == "RDZV":
        options.rdzv.update(ours)
    options.set_device_map(other, {0: 0})
    rpc.init_rpc(f"w{rank}", backend=kind, rank=rank, world_size=2, rpc_backend_options=options)
    return rpc, other


def back(tensor):
    return tensor


def first(tensor):
    return tensor[:1]


def nothing(tensor):
    return None


def uses_ipc(rpc, other):
    """Sends tensors until the pool is in use both ways, or refused."""
    import torch

    end = time.monotonic() + 20
    while time.monotonic() < end:
        rpc.rpc_sync(other, back, args=(torch.ones(MIB, device="cuda"),))
        facts = rpc.api._get_current_rpc_agent().get_debug_info()
        staged = [value for name, value in facts.items() if name.startswith("agent.cuda.staged")]
        if staged:
            return staged[0]
        if int(facts.get("agent.cuda.segments_of_peers", 0)) and int(facts.get("agent.cuda:0.pool_bytes", 0)):
            rpc.rpc_sync(other, back, args=(torch.ones(MIB, device="cuda"),))
            return ""
    return "not confirmed within 20 s"


def delayed(torch, tensor, value):
    """Fills a tensor late, on its stream."""
    torch.cuda._sleep(20_000_000)
    tensor.fill_(value)
    return tensor


def transfers(rank, folder):
    """Sends tensors of many sizes both ways, and 200 behind delayed kernels."""
    import torch

    rpc, other = join("RDZV", rank, folder)
    if rank == 0:
        print("row", "CUDA IPC between two processes", uses_ipc(rpc, other) or "in use", sep="|")
        for size in (1 << 10, 1 << 16, MIB, 16 * MIB, 256 * MIB):
            x = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
            good = torch.equal(rpc.rpc_sync(other, back, args=(x,)), x)
            print("row", f"{size} bytes there and back, bit for bit", "equal" if good else "DIFFERENT", sep="|")
        wrong = 0
        x = torch.empty(MIB, dtype=torch.int32, device="cuda")
        for number in range(200):
            result = rpc.rpc_sync(other, back, args=(delayed(torch, x, number),))
            wrong += not bool((result == number).all())
        print("row", "200 tensors of 4 MiB behind delayed kernels", f"{wrong} wrong", sep="|")
    rpc.shutdown()


def rate(rpc, other, torch, size, rounds=20):
    x = torch.ones(size // 4, device="cuda")
    for _ in range(3):
        rpc.rpc_sync(other, nothing, args=(x,))
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(rounds):
        rpc.rpc_sync(other, nothing, args=(x,))
    torch.cuda.synchronize()
    return size * rounds / (time.perf_counter() - begun) / 1e9


def copies(torch, size, to):
    x = torch.ones(size // 4, device="cuda")
    y = torch.empty(size // 4, device=to, pin_memory=to == "cpu")
    y.copy_(x)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(20):
        y.copy_(x, non_blocking=True)
    torch.cuda.synchronize()
    return size * 20 / (time.perf_counter() - begun) / 1e9


def latency(rpc, other, torch):
    x = torch.ones(1024, device="cuda")
    times = []
    for _ in range(500):
        begun = time.perf_counter()
        rpc.rpc_sync(other, nothing, args=(x,))
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def rates(rank, folder):
    """Rates of IPC, of host memory and of TensorPipe in the same run."""
    import torch

    size, found = 64 * MIB, {}
    for name, backend, ours in (("rdzv, IPC", "RDZV", {}), ("rdzv, host memory", "RDZV", {"cuda_pool": 0}),
                                ("TensorPipe", "TENSORPIPE", {})):
        rpc, other = join(backend, rank, f"{folder}/{len(found)}", **ours)
        if rank == 0:
            if backend == "RDZV" and not ours:
                uses_ipc(rpc, other)
            found[name] = rate(rpc, other, torch, size), latency(rpc, other, torch)
            print("row", f"64 MiB, {name}", f"{found[name][0]:.1f} GB/s", sep="|")
            print("row", f"call with 4 KiB, {name}", f"{found[name][1]:.0f} us", sep="|")
        else:
            found[name] = 0, 0
        rpc.shutdown()
    if rank == 0:
        device, host = copies(torch, size, "cuda"), copies(torch, size, "cpu")
        print("row", "64 MiB, copy on the device", f"{device:.1f} GB/s", sep="|")
        print("row", "64 MiB, copy to pinned memory", f"{host:.1f} GB/s", sep="|")
        ipc, staged, pipe = (found[name][0] for name in found)
        print("row", "IPC to a copy on the device (at least 0.8)", f"{ipc / device:.2f}", sep="|")
        print("row", "host memory to a pinned copy (at least 0.8)", f"{staged / host:.2f}", sep="|")
        print("row", "rdzv to TensorPipe, 64 MiB", f"{ipc / pipe:.2f}", sep="|")


def deaths(rank, folder):
    """Kills one side 20 times; the memory of the survivor returns to its level."""
    import torch

    rpc, other = join("RDZV", rank, folder)
    uses_ipc(rpc, other)
    if rank == 1:
        open(f"{folder}/ready", "w").close()
        while True:
            rpc.rpc_sync(other, nothing, args=(torch.ones(16 * MIB, device="cuda"),))
    try:
        while True:
            rpc.rpc_sync(other, nothing, args=(torch.ones(16 * MIB, device="cuda"),))
    except RuntimeError:
        pass
    end, names = time.monotonic() + 10, ("segments_of_peers", "pool_bytes", "lent_bytes", "received_bytes")
    agent = rpc.api._get_current_rpc_agent()
    while time.monotonic() < end:
        facts = agent.get_debug_info()
        left = {name: value for name, value in facts.items() if "cuda" in name and name.endswith(names) and value != "0"}
        if not left:
            print("good", flush=True)
            break
        time.sleep(0.05)
    else:
        print("left", left, flush=True)
    os._exit(0)


class Server:
    """Parameters on the GPU, for trainers."""

    def __init__(self, size):
        import torch

        self.weights = torch.zeros(size, device="cuda")

    def pull(self):
        return self.weights

    def push(self, gradient):
        self.weights -= 0.1 * gradient
        return float(self.weights.sum())


def references(rank, folder):
    """A parameter server behind an RRef, with its weights on the GPU."""
    import torch

    rpc, other = join("RDZV", rank, folder)
    if rank == 0:
        server = rpc.remote(other, Server, args=(1000,))
        for _ in range(50):
            weights = server.rpc_sync().pull()
            server.rpc_sync().push(weights - torch.ones(1000, device="cuda"))
        close = torch.allclose(server.rpc_sync().pull(), torch.full((1000,), 1 - 0.9**50, device="cuda"), atol=1e-4)
        print("row", "parameter server behind an RRef on cuda:0, 50 steps", "converges" if close else "WRONG", sep="|")
    rpc.shutdown()


def suite(_rank, folder):
    """PyTorch's own tests that one GPU allows."""
    import unittest

    import torch
    import torch.distributed.rpc as rpc
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed.rpc.rpc_agent_test_fixture import RpcAgentTestFixture
    from torch.testing._internal.distributed.rpc.rpc_test import TensorPipeAgentCudaRpcTest

    common_distributed.TIMEOUT_DEFAULT = 30

    class Fixture(RpcAgentTestFixture):
        rpc_backend = property(lambda self: rpc.backend_registry.BackendType["RDZV"])

        @property
        def rpc_backend_options(self):
            options = rpc.backend_registry.construct_rpc_backend_options
            return options(self.rpc_backend, init_method=self.init_method)

    class Cuda(TensorPipeAgentCudaRpcTest, Fixture, common_distributed.MultiProcessTestCase):
        world_size = 4

        def setUp(self):
            super().setUp()
            self._spawn_processes()

    Cuda.rpc_backend, Cuda.rpc_backend_options = Fixture.rpc_backend, Fixture.rpc_backend_options
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name in sorted(unittest.TestLoader().getTestCaseNames(Cuda)):
        result = unittest.TestResult()
        Cuda(name).run(result)
        outcome = "skipped" if result.skipped else "failed" if result.errors or result.failures else "passed"
        counts[outcome] += 1
        if outcome == "failed":
            lines = (result.errors + result.failures)[0][1].strip().splitlines()
            print("row", name, f"failed: {lines[-1][:200]}", sep="|", flush=True)
    print("row", f"`TensorPipeAgentCudaRpcTest` of PyTorch {torch.__version__}", str(counts), sep="|")


# The page
# --------------------------------------------------------------------------------------------------


def workers(name, path, limit):
    """Runs a section in two processes; returns their output."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            os.mkdir(f"{folder}/{number}")
        environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, __file__, "--section", name, "--folder", folder, "--rank"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
        processes = [subprocess.Popen([*command, str(rank)], **pipes) for rank in range(1 if name == "suite" else 2)]
        if name == "deaths":
            end = time.monotonic() + limit
            while not os.path.exists(f"{folder}/ready") and time.monotonic() < end:
                time.sleep(0.05)
            processes[1].send_signal(signal.SIGKILL)
        end, texts = time.monotonic() + limit, []
        for process in processes:
            try:
                texts.append(process.communicate(timeout=max(end - time.monotonic(), 1)))
            except subprocess.TimeoutExpired:
                process.kill()
                out, error = process.communicate()
                texts.append((out, f"it did not end within {limit} s\n{error[-500:]}"))
        codes = [process.returncode for process in processes]
        wrong = [error for (_, error), code in zip(texts, codes) if code not in (0, -signal.SIGKILL) or "did not end" in error]
        return texts[0][0], "" if not wrong else wrong[0].strip().splitlines()[-1][:300]


def main():
    parser = argparse.ArgumentParser()
    for name in ("--wheel", "--out", "--section", "--folder", "--rank"):
        parser.add_argument(name)
    arguments = parser.parse_args()
    if arguments.section:
        import rdzv.torch.rpc  # noqa: F401

        sys.modules.setdefault("gpu_check", sys.modules["__main__"])
        return globals()[arguments.section](int(arguments.rank), arguments.folder)
    begun = time.monotonic()
    path = tempfile.mkdtemp()
    zipfile.ZipFile(arguments.wheel).extractall(path)
    script = Path(path) / "gpu_check.py"
    script.write_text(Path(__file__).read_text())
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    card = subprocess.run(query, capture_output=True, text=True).stdout.strip().splitlines() or ["no GPU"]
    import torch

    lines = [
        f"Date: {datetime.date.today()}. Card and driver: {card[0]}. PyTorch {torch.__version__}, Python "
        f"{platform.python_version()}.",
        "",
        "| check | result |",
        "|---|---|",
    ]
    for name, limit in (("transfers", 60), ("rates", 60), ("references", 30), ("deaths", 90), ("suite", 120)):
        left = TOTAL_SECONDS - (time.monotonic() - begun)
        if left < 10:
            lines.append(f"| {name} | not tried: the time was over |")
            continue
        if name == "deaths":
            good, tried, end = 0, 0, time.monotonic() + min(limit, left)
            while tried < 20 and time.monotonic() < end:
                out, _ = workers(name, path, 20)
                good, tried = good + ("good" in out), tried + 1
            lines.append(f"| SIGKILL of a worker, memory of the survivor is at its level | {good} of {tried} times |")
            continue
        out, wrong = workers(name, path, min(limit, left))
        lines += [f"| {row.split('|')[1]} | {row.split('|')[2]} |" for row in out.splitlines() if row.startswith("row|")]
        if wrong:
            lines.append(f"| {name} | failed: {wrong.replace('|', ' ')} |")
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    Path(arguments.out).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    # Functions that other processes call need a module that they can import.
    if sys.modules["__main__"].__spec__ is None and "--section" in sys.argv:
        sys.path.insert(0, os.environ["PYTHONPATH"].split(os.pathsep)[0])
        import gpu_check

        sys.exit(gpu_check.main())
    main()
