"""Device ``fake`` in the role of ``cuda``, for tests without a GPU.

Its tensors are in host memory, and its streams are numbers. It registers PyTorch's
PrivateUse1 as a backend written in Python. The stand-in for the library of the driver
(``fake_cuda.c``) copies the memory.
"""

import contextlib
import ctypes
import itertools
import threading

import torch
from torch.distributed.rpc import internal
from torch.utils import _pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from rdzv.rpc import _devices

COUNT = 4

_setup_privateuseone_for_python_backend("fake")


class FakeTensor(torch.Tensor):
    """Tensor on a device; ``raw`` is its memory."""

    @staticmethod
    def __new__(cls, raw, index):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), dtype=raw.dtype, device=torch.device("fake", index)
        )
        tensor.raw, tensor.index_ = raw, index
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        places = {one.index_ for one in _pytree.tree_leaves((args, kwargs)) if isinstance(one, FakeTensor)}
        assert len(places) == 1, f"tensors on several devices: {places}"
        (place,) = places
        args, kwargs = _pytree.tree_map_only(FakeTensor, lambda one: one.raw, (args, kwargs or {}))
        wanted = kwargs.get("device")
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        made = func(*args, **kwargs)
        if func in (torch.ops.aten._to_copy.default,) and wanted is not None:
            if torch.device(wanted).type == "cpu":
                return made
            place = torch.device(wanted).index
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
            return made
        return _pytree.tree_map_only(torch.Tensor, lambda raw: FakeTensor(raw, place), made)

    def __repr__(self):
        return f"FakeTensor({self.raw}, fake:{self.place})"


def put(tensor, index):
    """Returns a copy of a CPU tensor on a device."""
    return FakeTensor(tensor.clone(), index)


library = torch.library.Library("aten", "IMPL")


def _empty(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return FakeTensor(torch.empty_strided(size, stride, dtype=dtype), device.index)


library.impl("empty_strided", _empty, "PrivateUse1")

_now = threading.local()
_next = itertools.count(100)


class StandIn:
    """Adapter of `_devices` for the device."""

    type = "fake"
    subclass = FakeTensor

    def count(self):
        return COUNT

    def memory(self, tensor):
        return tensor.index_, tensor.raw.data_ptr(), tensor.raw.numel() * tensor.raw.element_size()

    def stream(self, index):
        return getattr(_now, "streams", {}).get(index, 1)

    def tensor(self, memory):
        memory.hand_to(self.stream(memory.device))
        view = (ctypes.c_uint8 * len(memory)).from_address(memory.address)
        return FakeTensor(torch.frombuffer(view, dtype=torch.uint8).clone(), memory.device)

    def empty(self, shape, kind, index):
        return FakeTensor(torch.empty(shape, dtype=kind), index)

    def streams(self, indices):
        before = getattr(_now, "streams", {})
        _now.streams = before | {index: next(_next) for index in indices}
        stack = contextlib.ExitStack()
        stack.callback(setattr, _now, "streams", before)
        return stack

    def settle(self, index):
        pass

    follow = settle

    def mark(self, index):
        return index, self.stream(index)

    def join(self, mark):
        index, stream = mark
        joined.append((stream, self.stream(index)))

    def of_future(self, _indices):
        # A future of torch has no events for this device.
        return None


# Streams that waited for the end of another stream, for futures: the other one, and they.
joined = []
_devices.framework = StandIn()
internal._internal_rpc_pickler._register_reducer(FakeTensor, internal._internal_rpc_pickler._tensor_reducer)
