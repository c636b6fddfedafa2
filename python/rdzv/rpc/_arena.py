"""Memory that calls share with workers on the same host without a copy."""

from __future__ import annotations

from importlib import import_module

from rdzv._rdzv import RpcArena

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Arena:
    """Shared memory for numpy arrays.

    A call with an array of at least 64 KiB lends the array to a worker on the same host. The call
    takes as long for 1 GiB as for 64 KiB. The callee reads the array in place, and cannot write to
    it.

    Do not modify an array while other workers use it. Its memory becomes free when no worker uses
    it any more. A call also lends torch tensors that share the memory of such an array
    (``torch.from_numpy``); the callee copies them.

    Args:
        bytes (int): size, rounded up to a power of two. The system provides memory on first
            use.

    Raises:
        ValueError: the system refuses to provide the memory.

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

        Blocks are powers of two, so an array with this number of bytes may not fit.
        """
        return self._native.free

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """Creates an array in the arena, with unspecified content.

        Args:
            shape (int | sequence of int): number of elements, by dimension.
            dtype (dtype): type of the elements, in numpy's notation. Default ``float32``.

        Returns:
            numpy.ndarray: a writable array.

        Raises:
            MemoryError: the arena has no room for the array.

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
            needed = count * kind.itemsize
            raise MemoryError(
                f"the arena has {self.free} of {self.capacity} bytes free, but {needed} bytes are needed in one block"
            )
        return numpy.frombuffer(block, dtype=kind, count=count).reshape(sizes)


Arena.__module__ = "rdzv.rpc"
