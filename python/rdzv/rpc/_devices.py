"""Tensors on devices: memory and streams of the framework.

The streams order all work, and no thread of Python waits for a device. A blocking function that
another worker calls with tensors on a device runs with new current streams. The default streams
wait for the work that creates a kept value.
"""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module

from rdzv._rdzv import DeviceTensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


class Cuda:
    """Tensors of torch on CUDA devices."""

    type = "cuda"
    # Subclass of torch.Tensor whose instances are sent as plain tensors.
    subclass: Any = None

    def count(self) -> int:
        """Returns the number of devices, without initializing CUDA."""
        return int(import_module("torch").cuda.device_count())

    def memory(self, tensor: Any) -> tuple[int, int, int]:
        """Returns device, address and size of a contiguous tensor."""
        return tensor.device.index, tensor.data_ptr(), tensor.numel() * tensor.element_size()

    def stream(self, index: int) -> int:
        """Returns the handle of the current stream; 1 for the default stream."""
        return import_module("torch").cuda.current_stream(index).cuda_stream or 1

    def tensor(self, memory: DeviceTensor) -> Any:
        """Returns the bytes as a tensor, for which the current stream waits."""
        return import_module("torch").from_dlpack(memory)

    def empty(self, shape: Any, kind: Any, index: int) -> Any:
        """Returns a tensor without elements."""
        return import_module("torch").empty(shape, dtype=kind, device=f"{self.type}:{index}")

    def streams(self, indices: Iterable[int]) -> contextlib.ExitStack:
        """Makes streams of a pool current; they follow the default streams."""
        cuda, stack = import_module("torch").cuda, contextlib.ExitStack()
        for index in indices:
            stream = cuda.Stream(index)
            stream.wait_stream(cuda.default_stream(index))
            stack.enter_context(cuda.stream(stream))
        return stack

    def settle(self, index: int) -> None:
        """Makes the default stream wait for the current stream."""
        cuda = import_module("torch").cuda
        cuda.default_stream(index).wait_stream(cuda.current_stream(index))

    def follow(self, index: int) -> None:
        """Makes the current stream wait for the default stream."""
        cuda = import_module("torch").cuda
        cuda.current_stream(index).wait_stream(cuda.default_stream(index))

    def mark(self, index: int) -> Any:
        """Returns a mark at the end of the work of the current stream."""
        cuda = import_module("torch").cuda
        return index, cuda.current_stream(index).record_event()

    def join(self, mark: Any) -> None:
        """Makes the current stream wait for a mark."""
        index, event = mark
        import_module("torch").cuda.current_stream(index).wait_event(event)

    def of_future(self, indices: Iterable[int]) -> list[Any]:
        """Returns the devices of a future of torch."""
        torch = import_module("torch")
        return [torch.device(self.type, index) for index in indices]


framework: Any = Cuda()

# Agent of the process. `_agent` sets it, because this module is below that one.
agent: Any = None


def count(options: Any) -> int:
    """Returns the number of devices of this worker.

    Without torch, no tensor can be on a device.
    """
    if "torch" in sys.modules or options.device_maps or options.devices:
        return int(framework.count())
    return 0


def indices(parts: Iterable[Any]) -> set[int]:
    """Returns the devices of the memory of a message."""
    return {part.device for part in parts if type(part) is DeviceTensor}


def entered(parts: list[Any]) -> contextlib.ExitStack | None:
    """Makes new streams current for a message; None without tensors on devices."""
    used = indices(parts)
    return framework.streams(used) if used else None


def settle(native: Any) -> None:
    """Makes the default streams wait for the work that creates a kept value."""
    for index in native.devices:
        framework.settle(index)


def follow(native: Any) -> None:
    """Makes the current streams wait for the work that creates kept values."""
    for index in native.devices:
        framework.follow(index)


class Carrier(bytearray):
    """Object that stands for the memory of a tensor in a pickle."""

    __slots__ = ("native",)


def carrier(tensor: Any) -> Carrier:
    """Returns the carrier of a contiguous tensor of the current stream."""
    if agent is None:
        raise RuntimeError("RPC has not been initialized. Call rdzv.rpc.init_rpc first.")
    carried = Carrier()
    memory = framework.memory(tensor)
    carried.native = agent.device_tensor(tensor, memory, framework.stream(memory[0]))
    return carried
