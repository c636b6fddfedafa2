"""Adapters that make stores of rdzv usable as stores of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

import rdzv

# torch's C++ code keeps only the C++ half of a Python store alive. Its calls fail after Python has
# collected the Python half. This list therefore keeps all stores until the interpreter ends.
_HANDED_OUT: list[PyStore] = []

# Longest timeout that torch accepts.
_LONGEST = timedelta(days=365 * 100)


def store(x: rdzv.Store) -> dist.Store:
    """Returns a store of torch for a store of rdzv.

    Args:
        x (rdzv.Store): the store. For a ``TCPStore``, or a ``PrefixStore`` over one, the result is torch's own C++ client
            of the same server, with a separate connection. For other stores, the result is a ``PyStore``.

    Returns:
        torch.distributed.Store: a store for ``init_process_group(store=...)``.

    Raises:
        TypeError: ``x`` is not a store of rdzv.
        torch.distributed.DistNetworkError: the server cannot be reached within the timeout of the store.

    Example:
        >>> import rdzv.torch
        >>> with rdzv.StoreServer() as server:
        ...     theirs = rdzv.torch.store(rdzv.TCPStore(server.host, server.port))
        ...     theirs.add("n", 1)
        1
    """
    if isinstance(x, rdzv.TCPStore):
        return dist.TCPStore(
            x.host, x.port, is_master=False, wait_for_workers=False, timeout=min(x.timeout, _LONGEST)
        )
    if isinstance(x, rdzv.PrefixStore):
        prefix, below = x.prefix_name, x.underlying_store
        below_of_torch = store(below)
        if isinstance(below_of_torch, (dist.TCPStore, dist.PrefixStore)):
            return dist.PrefixStore(prefix, below_of_torch)
    if not isinstance(x, rdzv.Store):
        raise TypeError(f"x must be a store of rdzv, not {type(x).__name__}")
    return PyStore(x)


class PyStore(dist.Store):
    """Adapter from torch's interface for Python stores to a store of rdzv.

    Each call takes the interpreter's lock, also calls from threads of torch. If there is a TCP server,
    ``rdzv.torch.store`` returns torch's own client instead.

    Args:
        inner (rdzv.Store): the store of rdzv.

    Raises:
        TypeError: ``inner`` is not a store of rdzv.

    Example:
        >>> import rdzv.torch
        >>> theirs = rdzv.torch.PyStore(rdzv.HashStore())
        >>> theirs.set("key", "value"); theirs.get("key")
        b'value'
    """

    def __init__(self, inner: rdzv.Store) -> None:
        if not isinstance(inner, rdzv.Store):
            raise TypeError(f"inner must be a store of rdzv, not {type(inner).__name__}")
        super().__init__()
        self._inner = inner
        # torch changes the timeout from C++, and each wait must use the new value.
        self.set_timeout(min(inner.timeout, _LONGEST))
        _HANDED_OUT.append(self)

    def _within(self, timeout: timedelta | None = None) -> float:
        """Longest time of a wait in seconds. With torch's 0, the store checks once."""
        seconds = (self.timeout if timeout is None else timeout).total_seconds()
        return max(seconds, 1e-6) if seconds < _LONGEST.total_seconds() else math.inf

    def set(self, key: str, value: str | bytes) -> None:
        """Stores a value. Args: key (str), value (bytes | str)."""
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        """Waits for a key and returns its value. Args: key (str)."""
        return self._inner.get(key, timeout=self._within())

    def add(self, key: str, amount: int) -> int:
        """Adds to a number and returns the sum. Args: key (str), amount (int)."""
        return self._inner.add(key, amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Stores ``desired`` if the key has the value ``expected``.

        Args: key (str), expected, desired (bytes | str).
        """
        return self._inner.compare_set(key, expected, desired)

    def check(self, keys: Sequence[str]) -> bool:
        """Returns True if all keys exist. Args: keys (list[str])."""
        return self._inner.check(list(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys exist.

        Args: keys (list[str]), timeout (timedelta | None).
        """
        self._inner.wait(list(keys), self._within(timeout))

    def delete_key(self, key: str) -> bool:
        """Removes a key and returns True if it existed. Args: key (str)."""
        return self._inner.delete_key(key)

    def num_keys(self) -> int:
        """Returns the number of keys."""
        return self._inner.num_keys()

    # The names that torch's C++ code looks up.
    deleteKey = delete_key
    getNumKeys = num_keys

    def list_keys(self) -> list[str]:
        """Returns all keys in arbitrary order."""
        return self._inner.list_keys()

    def append(self, key: str, value: str | bytes) -> None:
        """Appends to the value of a key. Args: key (str), value (bytes | str)."""
        self._inner.append(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Waits for several keys and returns their values. Args: keys (list[str])."""
        self._inner.wait(list(keys), self._within())
        return self._inner.multi_get(list(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Stores several values.

        Args: keys (list[str]), values (list[bytes | str]).
        """
        self._inner.multi_set(list(keys), list(values))

    def has_extended_api(self) -> bool:
        """Returns True if the store has ``append``, ``multi_get`` and ``multi_set``.

        Each of them is then a single operation.
        """
        return self._inner.has_extended_api()

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Adds an item to the end of a queue; only for Python callers.

        Args: key (str), value (bytes | str).
        """
        self._inner.queue_push(key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the first item of a queue; only for Python callers.

        Args: key (str), block (bool).
        """
        return self._inner.queue_pop(key, block)

    def queue_len(self, key: str) -> int:
        """Returns the length of a queue; only for Python callers. Args: key (str)."""
        return self._inner.queue_len(key)

    def clone(self) -> PyStore:
        """Returns a second handle to the same data."""
        return PyStore(self._inner.clone())
