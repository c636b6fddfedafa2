"""Tests that tensors of PyTorch go through rdzv and back, through the C ABI.

The library is `dlpack_border`. It takes a tensor out of a capsule, puts it into a message, creates a
tensor from the message, and returns this tensor.
"""

import ctypes
import gc
import weakref

import numpy
import pytest
import torch

from launching import DLPACK_BORDER

BORDER = ctypes.CDLL(DLPACK_BORDER)
PYTHON = ctypes.pythonapi
PYTHON.PyCapsule_New.restype = ctypes.py_object
PYTHON.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
PYTHON.PyCapsule_GetPointer.restype = ctypes.c_void_p
PYTHON.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
PYTHON.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

# Kept here, because capsules do not copy their names.
KINDS = {
    "new": (b"dltensor_versioned", b"used_dltensor_versioned"),
    "old": (b"dltensor", b"used_dltensor"),
}


def through(tensor, function, kind="new"):
    """Calls a function of the library, and converts its result to a tensor."""
    name, used = KINDS[kind]
    capsule = tensor.__dlpack__(max_version=(1, 0)) if kind == "new" else tensor.__dlpack__()
    pointer = PYTHON.PyCapsule_GetPointer(capsule, name)
    PYTHON.PyCapsule_SetName(capsule, used)
    function = getattr(BORDER, function)
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p]
    result = function(pointer)
    if not result:
        return None
    return torch.utils.dlpack.from_dlpack(PYTHON.PyCapsule_New(result, name, None))


def there_and_back(tensor, kind="new"):
    suffix = "_legacy" if kind == "old" else ""
    return through(tensor, f"rdzv_there_and_back{suffix}", kind)


TENSORS = {
    "a matrix": torch.arange(12.0).reshape(3, 4),
    "a number": torch.tensor(2.5, dtype=torch.float64),
    "nothing": torch.empty(3, 0, 2),
    "turned": torch.arange(12).reshape(3, 4).T,
    "a view without gaps": torch.arange(100, dtype=torch.int16)[10:20],
    "expanded": torch.tensor([1, 2, 3], dtype=torch.int8).expand(5, 3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TENSORS)
def test_what_has_no_gaps_comes_back_as_the_same_memory(name, kind):
    tensor = TENSORS[name]
    back = there_and_back(tensor, kind)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)
    if tensor.numel():
        assert back.stride() == tensor.stride()
        assert back.data_ptr() == tensor.data_ptr()


def test_what_has_gaps_comes_back_without_them():
    tensor = torch.arange(64).reshape(8, 8)[:, 2:5]
    back = there_and_back(tensor)
    assert torch.equal(back, tensor)
    assert back.stride() == (3, 1)
    assert back.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize(
    "dtype",
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool "
    "complex64 float8_e4m3fn float8_e5m2".split(),
)
def test_every_type_of_ours_keeps_its_bytes(dtype):
    dtype = getattr(torch, dtype)
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.arange(4 * size, dtype=torch.uint8) % (2 if dtype == torch.bool else 251)
    tensor = raw.view(dtype)
    back = there_and_back(tensor)
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), raw)


def test_memory_of_torch_lives_as_long_as_a_view_of_it():
    owner = numpy.arange(6.0).reshape(2, 3)
    alive = weakref.ref(owner)
    base = torch.from_numpy(owner)
    address = base.data_ptr()
    row = through(base, "rdzv_first_row")
    del base, owner
    gc.collect()
    assert alive() is not None
    assert row.data_ptr() == address
    assert row.tolist() == [0.0, 1.0, 2.0]
    del row
    gc.collect()
    assert alive() is None


def test_what_we_cannot_send_is_given_back(capfd):
    assert there_and_back(torch.zeros(2, dtype=torch.complex128)) is None
    assert "type code 5 (bits: 128, lanes: 1)" in capfd.readouterr().err
