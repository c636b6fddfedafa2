"""Encoding of objects as bytes: a pickle of protocol 5, then its buffers."""

import io
import pickle
import struct

# Alignment of each part, in bytes, so that arrays are aligned in the received data. The header has
# the number of buffers and the lengths of the pickle and of each buffer, in 8 bytes each. The
# pickle and the buffers follow.
_ALIGN = 16

# Names that an untrusted pickle may refer to. Most builtin types need no name in a pickle.
_ADMITTED = {
    "builtins": {"bytearray", "complex", "frozenset", "range", "set", "slice"},
    "collections": {"OrderedDict", "deque"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if name in _ADMITTED.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"the object refers to {module}.{name}, which is not allowed in an untrusted pickle; trusted=False admits "
            "only builtin types, numpy arrays, and a few types of collections and datetime"
        )


def dump(obj: object) -> bytes:
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    header = struct.pack(f"<{len(parts) + 1}Q", len(buffers), *(part.nbytes for part in parts))
    pieces: list[memoryview | bytes] = []
    for part in (memoryview(header), *parts):
        pieces += (part, bytes(-part.nbytes % _ALIGN))
    return b"".join(pieces)


def load(data: bytes | bytearray, trusted: bool = True) -> object:
    view = memoryview(data)
    (count,) = struct.unpack_from("<Q", view)
    lengths = struct.unpack_from(f"<{count + 1}Q", view, 8)
    start = 8 * (count + 2)
    parts = []
    for length in lengths:
        start += -start % _ALIGN
        parts.append(view[start : start + length])
        start += length
    reader = pickle.Unpickler if trusted else _Restricted
    return reader(io.BytesIO(parts[0]), buffers=parts[1:]).load()
