"""Memory that calls share with workers of the same host, without a copy."""

from __future__ import annotations

from importlib import import_module

from rdzv._rdzv import RpcArena

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Arena:
    """Shared memory for numpy arrays in calls to workers of the same host.

    A call does not copy an array in the arena if the array has at least 64 KiB. Such a call takes as long for 1 GiB as
    for 64 KiB. The callee reads the array in place, and cannot write it.

    Leave an array unchanged while other workers use it. Its memory is free again after the last user has dropped it.
    torch tensors that share the memory of such an array (``torch.from_numpy``) are not copied either.

    Args:
        bytes (int): size, rounded up to a power of two. The system provides memory only when it is first used.

    Raises:
        ValueError: the system refuses the memory.

    Example:
        >>> from rdzv import rpc
        >>> arena = rpc.Arena(1 << 20)
        >>> arena.capacity
        1048576
    """

    def __init__(self, bytes: int) -> None:
        self._native = RpcArena(bytes)

    @property
    def capacity(self) -> int:
        """int: number of bytes."""
        return self._native.capacity

    @property
    def free(self) -> int:
        """int: number of free bytes.

        Blocks are powers of two, so an array of this size may not fit.
        """
        return self._native.free

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """Creates an array in the arena, with undefined content.

        Args:
            shape (int | sequence of int): number of elements, by dimension.
            dtype (dtype): numpy's type of the elements. Default ``float32``.

        Returns:
            numpy.ndarray: a writable array.

        Raises:
            MemoryError: the arena has no room for it.

        Example:
            >>> from rdzv import rpc
            >>> rpc.Arena(1 << 20).empty((2, 3)).shape
            (2, 3)
        """
        numpy: Any = import_module("numpy")
        kind = numpy.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        count = 1
        for size in sizes:
            count *= size
        if not count:
            return numpy.empty(sizes, kind)
        block = self._native.allocate(count * kind.itemsize)
        if block is None:
            raise MemoryError(f"the arena has {self.free} of {self.capacity} bytes free, and {count * kind.itemsize} do not fit")
        return numpy.frombuffer(block, dtype=kind, count=count).reshape(sizes)


Arena.__module__ = "rdzv.rpc"
