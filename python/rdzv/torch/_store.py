"""Adapters that make rdzv stores usable as torch stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

import rdzv

# torch's C++ code keeps only the C++ half of a Python store, and calls fail once the Python half is
# collected. So these stores are kept until the interpreter ends.
_HANDED_OUT: list[PyStore] = []

# Maximum timeout that torch's clock accepts.
_LONGEST = timedelta(days=365 * 100)


def store(x: rdzv.Store) -> dist.Store:
    """Returns a torch store for an rdzv store.

    Args:
        x (rdzv.Store): a ``TCPStore``, or a ``PrefixStore`` over one: the result is torch's own
            C++ client for the same server, with a separate connection. For any other store, the
            result is a ``PyStore``.

    Returns:
        torch.distributed.Store: a store for ``init_process_group(store=...)``.

    Raises:
        TypeError: ``x`` is not an rdzv store.
        torch.distributed.DistNetworkError: the server cannot be reached within the store's timeout.

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
    """rdzv store with torch's interface for Python stores.

    Each call acquires the interpreter lock, including calls from torch's threads. For a TCP store,
    ``rdzv.torch.store`` returns torch's own client instead.

    Args:
        inner (rdzv.Store): store that performs the operations.

    Raises:
        TypeError: ``inner`` is not an rdzv store.

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
        # torch changes this property from C++, and expects each wait to use it.
        self.set_timeout(min(inner.timeout, _LONGEST))
        _HANDED_OUT.append(self)

    def _within(self, timeout: timedelta | None = None) -> float:
        """Returns the seconds of a wait; torch's 0 polls once."""
        seconds = (self.timeout if timeout is None else timeout).total_seconds()
        return max(seconds, 1e-6) if seconds < _LONGEST.total_seconds() else math.inf

    def set(self, key: str, value: str | bytes) -> None:
        """Stores a value. Args: key (str), value (bytes | str)."""
        self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        """Waits for a key up to ``timeout``, and returns its value.

        Args: key (str).
        """
        return self._inner.get(key, timeout=self._within())

    def add(self, key: str, amount: int) -> int:
        """Adds to the number under a key, and returns the sum.

        Args: key (str), amount (int).
        """
        return self._inner.add(key, amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Stores ``desired`` if the key has ``expected``.

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
        """Removes a key; returns True if it existed. Args: key (str)."""
        return self._inner.delete_key(key)

    def num_keys(self) -> int:
        """Returns the number of keys."""
        return self._inner.num_keys()

    # Names that torch's C++ code uses.
    deleteKey = delete_key
    getNumKeys = num_keys

    def list_keys(self) -> list[str]:
        """Returns all keys in arbitrary order."""
        return self._inner.list_keys()

    def append(self, key: str, value: str | bytes) -> None:
        """Appends to the value of a key. Args: key (str), value (bytes | str)."""
        self._inner.append(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Waits for several keys, and returns their values. Args: keys (list[str])."""
        self._inner.wait(list(keys), self._within())
        return self._inner.multi_get(list(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Stores several values.

        Args: keys (list[str]), values (list[bytes | str]).
        """
        self._inner.multi_set(list(keys), list(values))

    def has_extended_api(self) -> bool:
        """Returns True if the store has the extended operations.

        Then ``append``, ``multi_get`` and ``multi_set`` are single operations.
        """
        return self._inner.has_extended_api()

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Adds to the end of a queue. Python callers only.

        Args: key (str), value (bytes | str).
        """
        self._inner.queue_push(key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the first item of a queue. Python callers only.

        Args: key (str), block (bool).
        """
        return self._inner.queue_pop(key, block)

    def queue_len(self, key: str) -> int:
        """Returns the number of items in a queue. Python callers only.

        Args: key (str).
        """
        return self._inner.queue_len(key)

    def clone(self) -> PyStore:
        """Returns a second handle to the same data."""
        return PyStore(self._inner.clone())
