"""Values as messages, and the policy for reading them.

A message contains a protocol 5 pickle, with arrays and tensors out of band.
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
from importlib import import_module

from rdzv._rdzv import DeviceTensor, TensorMemory, pickle_globals
from rdzv.rpc import _devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from rdzv._rdzv import RpcReference

# Function of `_functions`, which sets it, because this module is below that one.
_is_registered_class: Callable[[str, str], bool] | None = None

# Names that every policy admits, besides builtin types that need no name.
_ADMITTED = {
    "builtins": {"complex", "frozenset", "range", "set", "slice"},
    "collections": {"OrderedDict", "deque"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "numpy": {"dtype"},
    "numpy._core.multiarray": {"scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.multiarray": {"scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "rdzv": {"Deadline", "Error", "PeerLost", "RemoteError", "RpcError", "StoreError", "StoreTimeout"},
    "rdzv.rpc._values": {"_compressed", "_parameter", "_reference", "_sparse", "_tensor"},
    "torch": {"Size", "device"},
    "uuid": {"UUID"},
}


class Policy:
    """Classes that pickles may refer to, and functions that peers may call.

    ``mode`` is ``"registered"``, ``"importable"`` (which needs ``packages``) or ``"any"``.
    """

    __slots__ = ("mode", "packages")

    def __init__(self, mode: str = "registered", packages: Iterable[str] = ()) -> None:
        self.mode = mode
        self.packages = tuple(packages)

    def covers(self, module: object) -> bool:
        """Returns True if a module is in one of the packages."""
        if not isinstance(module, str):
            return False
        return any(module == package or module.startswith(package + ".") for package in self.packages)

    def admits(self, module: str, name: str) -> bool:
        """Returns True if a pickle may refer to this class."""
        if name in _ADMITTED.get(module, ()):
            return True
        if module == "builtins":
            found = getattr(sys.modules["builtins"], name, None)
            return isinstance(found, type) and issubclass(found, Exception)
        if module == "torch" and "torch" in sys.modules:
            torch = sys.modules["torch"]
            return isinstance(getattr(torch, name, None), torch.dtype)
        if _is_registered_class is not None and _is_registered_class(module, name):
            return True
        if self.mode == "importable" and self.covers(module) and "." not in name:
            __import__(module)
            found = getattr(sys.modules[module], name, None)
            return isinstance(found, type) and self.covers(found.__module__)
        return False


# Maximum memory of a tensor with gaps, as a multiple of its elements, for it to keep its strides.
_MOST_GAPS = 16

# Policy of the current agent.
policy = Policy()

# Class of received references. `_rref` sets it, and `rdzv.torch.rpc` while its agent runs.
reference_class: Any = None

# References of the message that this thread reads.
_reading = threading.local()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, parts: list[Any], references: list[RpcReference]) -> None:
        super().__init__(file, 5, buffer_callback=lambda buffer: parts.append(_part(buffer.raw())))
        self._references = references

    def reducer_override(self, obj: Any) -> Any:
        native = getattr(obj, "_rdzv_reference", None)
        if native is not None and not isinstance(obj, type):
            self._references.append(native)
            return _reference, (len(self._references) - 1,)
        if "torch" in sys.modules:
            torch = sys.modules["torch"]
            # While torch is being imported, this attribute may be missing.
            tensor = getattr(torch, "Tensor", None)
            if tensor is not None and isinstance(obj, tensor):
                return _reduced_tensor(torch, obj)
        if "numpy" in sys.modules:
            numpy = sys.modules["numpy"]
            array = getattr(numpy, "ndarray", None)
            if array is not None and type(obj) is array and not obj.dtype.hasobject:
                if not (obj.flags.c_contiguous or obj.flags.f_contiguous):
                    obj = numpy.ascontiguousarray(obj)
                return obj.__reduce_ex__(5)
        return NotImplemented


def _part(view: memoryview) -> Any:
    """Returns the memory of a tensor as such, because device maps apply to it."""
    owner = view.obj
    if type(owner) is _devices.Carrier:
        return owner.native
    return owner if type(owner) is TensorMemory else view


class _Whole(pickle.Pickler):
    """Pickler without memory beside the pickle; tensors arrive in host memory."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        tensor = getattr(torch, "Tensor", None)
        if tensor is not None and isinstance(obj, tensor):
            return _reduced_tensor(torch, obj if obj.device.type == "cpu" else obj.cpu())
        return NotImplemented


def dump_whole(obj: object) -> bytes:
    """Returns a pickle that contains the memory of all tensors."""
    file = io.BytesIO()
    _Whole(file, 5).dump(obj)
    return file.getvalue()


# Many functions return None.
_NONE = pickle.dumps(None, 5)


def dump(obj: object) -> tuple[bytes, list[Any], list[RpcReference]]:
    """Returns an object's pickle, out-of-band memory and references."""
    if obj is None:
        return _NONE, [], []
    file = io.BytesIO()
    parts: list[Any] = []
    references: list[RpcReference] = []
    _Pickler(file, parts, references).dump(obj)
    return file.getvalue(), parts, references


def load(body: Any, parts: list[Any], references: list[RpcReference]) -> Any:
    """Reads an object, if the policy allows all names in the pickle."""
    if body == _NONE:
        return None
    if policy.mode != "any":
        for module, name in pickle_globals(bytes(body), len(parts)):
            if not policy.admits(module, name):
                raise pickle.UnpicklingError(f"the value refers to {module}.{name}, which this worker does not admit")
    if not references:
        return pickle.loads(body, buffers=parts)
    before = getattr(_reading, "references", None)
    _reading.references = references
    try:
        return pickle.loads(body, buffers=parts)
    finally:
        _reading.references = before


def load_plain(body: bytes) -> Any:
    """Reads an object of builtin types only."""
    if pickle_globals(body, 0):
        raise pickle.UnpicklingError("the value refers to a class")
    return pickle.loads(body)


def _reference(number: int) -> Any:
    references = getattr(_reading, "references", None)
    if references is None or not 0 <= number < len(references):
        raise pickle.UnpicklingError("the value uses a reference that was not sent with it")
    return reference_class._of(references[number])


def _reduced_tensor(torch: Any, tensor: Any) -> Any:
    on_cpu = tensor.device.type == "cpu"
    if not on_cpu and tensor.device.type != _devices.framework.type:
        raise ValueError(
            f"rpc: a tensor is on {tensor.device}; this build of rdzv supports CPU and CUDA tensors. Send tensor.cpu()"
        )
    cls = type(tensor)
    if cls is torch.nn.Parameter:
        return _parameter, (tensor.detach(), tensor.requires_grad)
    if cls not in (torch.Tensor, _devices.framework.subclass) or tensor.is_quantized:
        return NotImplemented
    detached = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        pair = (detached._indices(), detached._values())
        return _sparse, (*pair, tuple(tensor.shape), tensor.is_coalesced(), tensor.requires_grad)
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (detached.crow_indices(), detached.col_indices(), detached.values())
        return _compressed, (str(tensor.layout), *parts, tuple(tensor.shape), tensor.requires_grad)
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = (detached.ccol_indices(), detached.row_indices(), detached.values())
        return _compressed, (str(tensor.layout), *parts, tuple(tensor.shape), tensor.requires_grad)
    if tensor.layout is not torch.strided:
        return NotImplemented
    if detached.is_conj() or detached.is_neg():
        detached = detached.resolve_conj().resolve_neg()
    strides = None
    if not detached.is_contiguous():
        strides = tuple(detached.stride())
        order = sorted(range(detached.dim()), key=lambda dim: -detached.stride(dim))
        dense = detached.permute(order)
        if dense.is_contiguous():
            detached = dense
        else:
            # Gaps are not sent. The receiver makes them again unless they are large. Elements that
            # share memory are sent separately, in the default layout.
            if _overlap(tensor.shape, strides) or _reach(tensor.shape, strides) > _MOST_GAPS * tensor.numel():
                strides = None
            detached = detached.contiguous()
    memory = pickle.PickleBuffer(TensorMemory(detached) if on_cpu else _devices.carrier(detached))
    return _tensor, (memory, str(tensor.dtype), tuple(tensor.shape), strides, tensor.requires_grad)


def _torch() -> Any:
    return import_module("torch")


def _dtype(torch: Any, name: str) -> Any:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise pickle.UnpicklingError(f"the value has a tensor of type {name}, which this torch does not know")
    return dtype


def _tensor(
    memory: Any, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, requires_grad: bool
) -> Any:
    torch = _torch()

    kind = _dtype(torch, dtype)
    if type(memory) is DeviceTensor:
        tensor = _on_device(torch, memory, kind, shape, strides)
        return tensor.requires_grad_() if requires_grad else tensor
    view = memoryview(memory)
    count = view.nbytes // kind.itemsize
    if not count:
        tensor = torch.empty(shape, dtype=kind)
    else:
        # A leased block is read-only. torch does not support read-only memory: it would warn and
        # then write to it.
        if view.readonly:
            view = memoryview(bytearray(view))
        tensor = torch.frombuffer(view, dtype=kind)
        tensor = tensor.view(shape) if strides is None else _strided(torch, tensor, shape, strides)
    return tensor.requires_grad_() if requires_grad else tensor


def _on_device(
    torch: Any, memory: DeviceTensor, kind: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> Any:
    if not len(memory):
        return _devices.framework.empty(shape, kind, memory.device)
    tensor = _devices.framework.tensor(memory).view(kind)
    return tensor.view(shape) if strides is None else _strided(torch, tensor, shape, strides)


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Returns the number of elements that the strides of a tensor span."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


def _overlap(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Returns True unless the elements of a tensor certainly have separate memory."""
    reach = 1
    for stride, size in sorted(zip(strides, shape)):
        if size > 1 and stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def _strided(torch: Any, tensor: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    if len(shape) != len(strides) or min((*shape, 1)) < 1 or min((*strides, 0)) < 0:
        raise pickle.UnpicklingError("the value has a tensor with an invalid shape")
    reach, count = _reach(shape, strides), tensor.numel()
    if reach <= count:
        return tensor.as_strided(shape, strides)
    if reach > _MOST_GAPS * count:
        raise pickle.UnpicklingError("the value has a tensor that is larger than its memory")
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor.view(shape))


def _parameter(data: Any, requires_grad: bool) -> Any:
    torch = _torch()

    return torch.nn.Parameter(data, requires_grad=requires_grad)


def _sparse(indices: Any, values: Any, shape: tuple[int, ...], coalesced: bool, requires_grad: bool) -> Any:
    torch = _torch()

    tensor = torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)
    if coalesced:
        tensor = tensor._coalesced_(True)
    return tensor.requires_grad_() if requires_grad else tensor


def _compressed(
    layout: str, compressed: Any, plain: Any, values: Any, shape: tuple[int, ...], requires_grad: bool
) -> Any:
    torch = _torch()

    kind = {str(one): one for one in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)}[layout]
    tensor = torch.sparse_compressed_tensor(
        compressed, plain, values, shape, layout=kind, check_invariants=True
    )
    return tensor.requires_grad_() if requires_grad else tensor
