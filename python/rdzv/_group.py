"""Process groups of CPU ranks.

A group has collective operations on arrays and objects, and messages between two ranks.
"""

import sys

from rdzv import _rdzv
from rdzv._errors import CollectiveTimeout


class _Operator(tuple):
    """Reduction with a factor: its name and the factor."""

    __slots__ = ()


def premul_sum(factor):
    """Returns the reduction that sums values times a factor of each rank.

    Args:
        factor (float): the factor of this rank; must be finite. Ranks may pass different factors.

    Returns:
        An operator for the argument ``op`` of :class:`Group`'s reductions. It is for floating-point
            arrays only.

    Raises:
        TypeError: the factor is not a number.

    Example:
        >>> import rdzv
        >>> rdzv.premul_sum(0.25)
        ('premul_sum', 0.25)
    """
    return _Operator(("premul_sum", float(factor)))


def _named(op):
    """Returns the name and the factor of an operator that is no plain text."""
    if isinstance(op, _Operator):
        return op
    if isinstance(op, str):
        return op, None
    raise TypeError(f"op must be a str or premul_sum(factor), not {type(op).__name__}")


class Work:
    """Asynchronous operation: the result of a call with ``async_=True``.

    :meth:`wait` waits for it, any asyncio event loop can await it, and callbacks can report its
    end. Dropping the object does not end the operation. Do not use the arrays of the call until the
    operation has ended.

    Example:
        >>> import rdzv
        >>> group = rdzv.Group(rdzv.HashStore(), 0, 1)
        >>> array = bytearray(4)
        >>> work = group.all_reduce(array, async_=True)
        >>> work.wait()
        >>> group.close()
    """

    __slots__ = ("_convert", "_native")

    def __init__(self, native, convert=None):
        self._native = native
        self._convert = convert

    def wait(self, timeout=None):
        """Waits for the operation and returns its result.

        Args:
            timeout (float | datetime.timedelta | None): maximum time to wait, in seconds. None:
                until the operation ends.

        Returns:
            None. For a receive it is the sender, an int. For ``all_gather_objects`` it is the list
                of objects.

        Raises:
            CollectiveTimeout: the operation has not ended in time, and continues. Or it exceeded
                its own limit.
            CollectiveError: the operation failed.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.barrier(async_=True).wait(timeout=10)
        """
        if not self._native.wait(timeout):
            raise CollectiveTimeout(f"the operation did not finish within {timeout} s; it continues", cause="timeout")
        return self._result()

    def done(self):
        """Returns True if the operation has ended, successfully or not.

        Returns:
            bool: True once it has ended.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     work = group.barrier(async_=True)
            ...     work.wait()
            ...     work.done()
            True
        """
        return self._native.done()

    def add_done_callback(self, function):
        """Registers a function to call when the operation has ended.

        Args:
            function: called once with this work, after success and after failure. If the operation
                has ended, it is called immediately. Otherwise the thread that runs the operations
                of the group calls it, so it must not wait for one of them. An exception in it is
                reported as unraisable.

        Returns:
            None.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     work = group.barrier(async_=True)
            ...     work.wait()
            ...     work.add_done_callback(lambda work: print(work.done()))
            True
        """
        self._native.on_done(lambda: function(self))

    def _result(self):
        if self._convert is not None:
            return self._convert(self._native)
        return None

    def __await__(self):
        from asyncio import get_running_loop

        loop = get_running_loop()
        future = loop.create_future()

        def end():
            if not future.done():
                future.set_result(None)

        def wake():
            if not loop.is_closed():
                loop.call_soon_threadsafe(end)

        self._native.on_done(wake)
        yield from future
        return self.wait()


def _work(native, convert=None):
    return None if native is None else Work(native, convert)


class Group:
    """Process group, in which this process is one rank.

    The constructor returns when all ranks have joined. The ranks find each other through the store,
    and do not need it afterwards. As a context manager, a group is closed at the end of the block.

    All ranks call the same collective operations in the same order, with matching sizes and types.
    Arrays are numpy arrays, torch tensors on the CPU, ``bytearray``, and all objects with a buffer
    or ``__dlpack__``. JAX arrays on the host are read-only, so they can only be inputs. Arrays must
    be contiguous. Element types are bool, signed and unsigned integers of 8 to 64 bits, float16,
    bfloat16, float32 and float64. complex64 and complex128 support only sums and averages, and
    float8 supports no reductions.

    Operations raise these errors, besides those that their own texts list. ``TypeError``: the
    argument is not an array, or its element type or the operator for this type is not supported.
    ``ValueError``: the array is read-only, not contiguous, not aligned or on another device, or
    another argument has an invalid value. In both cases nothing is sent, and the group stays
    usable. ``CollectiveError``: the operation failed, and the group is broken; see :meth:`rebuild`.

    Args:
        store (Store): store through which the ranks find each other.
        rank (int): number of this process in the group, from 0.
        world_size (int): number of ranks.
        name (str): distinguishes groups in one store.
        timeout (float | datetime.timedelta): time limit of joining, and then of each operation, in
            seconds; ``math.inf`` for no limit.
        epoch (int): number of the group among the groups with its name, from 0; see
            :meth:`rebuild`.
        address (str | None): IP address of this host that the other ranks can reach. None: the
            address from which this host reaches the store. That is loopback with a store at
            ``localhost`` or a loopback address, or with one that has no connection.

    Raises:
        ValueError: the rank is not below the world size, the timeout is not positive, or the
            address is not an IP address.
        CollectiveTimeout: ranks are missing; ``peers`` names them.
        CollectiveError: the rank is taken, the ranks specify different world sizes, or the store
            failed.

    Attributes:
        rank (int): number of this process.
        world_size (int): number of ranks.
        epoch (int): number of the group among the groups with its name.

    Example:
        >>> import rdzv
        >>> with rdzv.Group(rdzv.HashStore(), rank=0, world_size=1) as group:
        ...     group.world_size
        1
    """

    __slots__ = ("__weakref__", "_native")

    def __init__(self, store, rank, world_size, *, name="default", timeout=60.0, epoch=0, address=None):
        self._native = _rdzv.Group(store, rank, world_size, name, timeout, epoch, address)

    @property
    def rank(self):
        """Returns the number of this process in the group, an int from 0.

        Returns:
            int: the rank, from 0.

        """
        return self._native.rank

    @property
    def world_size(self):
        """Returns the number of ranks in the group.

        Returns:
            int: at least 1.

        """
        return self._native.world_size

    @property
    def epoch(self):
        """Returns the group's number among the groups with its name, from 0.

        Each :meth:`rebuild` adds one.

        Returns:
            int: the epoch.

        """
        return self._native.epoch

    def all_reduce(self, tensor, op="sum", *, timeout=None, async_=False):
        """Combines the arrays of all ranks element-wise; all ranks get the result.

        The result is bitwise identical on all ranks.

        Args:
            tensor: writable array of any shape; the result replaces its values.
            op (str): ``sum``, ``avg``, ``prod``, ``min``, ``max``, ``band``, ``bor``, ``bxor`` or
                :func:`premul_sum`. Integers wrap around, and their average is rounded towards zero.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` without waiting for the operation.

        Returns:
            None, or a Work.

        Example:
            >>> import rdzv
            >>> array = bytearray([1, 2])
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.all_reduce(array)
            >>> list(array)
            [1, 2]
        """
        factor = None
        if op.__class__ is not str:
            op, factor = _named(op)
        return _work(self._native.all_reduce(tensor, op, factor, timeout, async_))

    def reduce(self, tensor, root=0, op="sum", *, timeout=None, async_=False):
        """Combines the arrays of all ranks; the rank ``root`` gets the result.

        The arrays are combined element by element.

        Args:
            tensor: array of any shape; at the root the result replaces its values, and elsewhere it
                stays unchanged.
            root (int): rank that gets the result.
            op (str): as for :meth:`all_reduce`.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` without waiting for the operation.

        Returns:
            None, or a Work.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.reduce(bytearray(8), root=0, op="max")
        """
        factor = None
        if op.__class__ is not str:
            op, factor = _named(op)
        return _work(self._native.reduce(tensor, root, op, factor, timeout, async_))

    def broadcast(self, tensor, root=0, *, timeout=None, async_=False):
        """Copies the array of the rank ``root`` to all ranks.

        Args:
            tensor: array of any shape, with the same size and type on all ranks; its values are
                replaced, except at the root.
            root (int): rank that has the values.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` without waiting for the operation.

        Returns:
            None, or a Work.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.broadcast(bytearray(8))
        """
        return _work(self._native.broadcast(tensor, root, timeout, async_))

    def all_gather(self, output, input, *, timeout=None, async_=False):
        """Copies the arrays of all ranks to all ranks.

        Args:
            output: array with ``world_size`` times the elements of ``input``, or a list of
                ``world_size`` arrays. It gets the arrays in the order of the ranks.
            input: array of any shape. It may be the part of ``output`` that belongs to this rank.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` without waiting for the operation.

        Returns:
            None, or a Work.

        Raises:
            ValueError: the sizes or types do not match, or ``input`` overlaps another part of
                ``output``.

        Example:
            >>> import rdzv
            >>> output = bytearray(2)
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.all_gather(output, b"ab")
            >>> output
            bytearray(b'ab')
        """
        return _work(self._native.all_gather(output, input, timeout, async_))

    def reduce_scatter(self, output, input, op="sum", *, timeout=None, async_=False):
        """Combines the arrays of all ranks; each rank gets its part of the result.

        The arrays are combined element by element.

        Args:
            output: array that gets this rank's part of the result.
            input: array with ``world_size`` times the elements of ``output``, or a list of
                ``world_size`` arrays. It stays unchanged.
            op (str): as for :meth:`all_reduce`.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` without waiting for the operation.

        Returns:
            None, or a Work.

        Raises:
            ValueError: the sizes or types do not match.

        Example:
            >>> import rdzv
            >>> output = bytearray(1)
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.reduce_scatter(output, b"a")
        """
        factor = None
        if op.__class__ is not str:
            op, factor = _named(op)
        return _work(self._native.reduce_scatter(output, input, op, factor, timeout, async_))

    def all_to_all(self, output, input, output_splits=None, input_splits=None, *, timeout=None, async_=False):
        """Exchanges a part of an array with every rank.

        Rank ``n`` gets part ``n`` of ``input``, and its part for this rank becomes part ``n`` of
        ``output``.

        Args:
            output: array, or a list of ``world_size`` arrays; the ``n``-th is from rank ``n``.
            input: array, or a list of ``world_size`` arrays; the ``n``-th goes to rank ``n``.
            output_splits (list[int] | None): number of rows (entries of the first dimension) from
                each rank; None for equal parts. If one rank passes splits or a list, all ranks must
                pass one of them.
            input_splits (list[int] | None): number of rows for each rank.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` without waiting for the operation.

        Returns:
            None, or a Work.

        Raises:
            ValueError: the splits do not add up, the types differ, or the arrays share memory.

        Example:
            >>> import rdzv
            >>> output = bytearray(2)
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.all_to_all(output, b"ab", [2], [2])
        """
        return _work(self._native.all_to_all(output, input, output_splits, input_splits, timeout, async_))

    def gather(self, output, input, root=0, *, timeout=None, async_=False):
        """Copies the arrays of all ranks to the rank ``root``.

        Args:
            output: at the root, an array with ``world_size`` times the elements of ``input``, or a list of
                ``world_size`` arrays; None on the other ranks.
            input: array of any shape.
            root (int): rank that gets the arrays.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` without waiting for the operation.

        Returns:
            None, or a Work.

        Raises:
            ValueError: the sizes or types do not match, ``output`` is missing at the root, or
                another rank passes it.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.gather([bytearray(2)], b"ab")
        """
        return _work(self._native.gather(output, input, root, timeout, async_))

    def scatter(self, output, input, root=0, *, timeout=None, async_=False):
        """Sends each rank its part of the array of the rank ``root``.

        Args:
            output: array that gets the part of this rank.
            input: at the root, an array with ``world_size`` times the elements of ``output``, or a list of
                ``world_size`` arrays; None on the other ranks.
            root (int): rank that has the arrays.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` without waiting for the operation.

        Returns:
            None, or a Work.

        Raises:
            ValueError: the sizes or types do not match, ``input`` is missing at the root, or
                another rank passes it.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.scatter(bytearray(2), b"ab")
        """
        return _work(self._native.scatter(output, input, root, timeout, async_))

    def send(self, tensor, to, tag=0, *, timeout=None, async_=False):
        """Sends an array to one rank, which calls :meth:`recv`.

        The other ranks do not participate. The call returns when the values are in flight and the
        array can be reused. A message of more than 64 KiB first waits for its receive. So does a
        shorter one if more than 256 KiB or 1024 messages from this rank would otherwise wait at the
        other rank.
        Messages and collective operations need no common order.

        Args:
            tensor: array of any shape.
            to (int): rank that receives the array, other than this one.
            tag (int): 0 to 4294967295; a receive matches only messages with the same tag.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` without waiting for the operation.

        Returns:
            None, or a Work.

        Raises:
            ValueError: the rank does not exist, or is this one.

        Example:
            >>> import rdzv
            >>> def exchange(group, array):
            ...     if group.rank == 0:
            ...         group.send(array, to=1)
            ...     elif group.rank == 1:
            ...         group.recv(array, source=0)
        """
        return _work(self._native.send(tensor, to, tag, timeout, async_))

    def recv(self, tensor, source=None, tag=0, *, timeout=None, async_=False):
        """Receives an array that a rank sends with :meth:`send`.

        Args:
            tensor: writable array with the number of elements of the message.
            source (int | None): rank of the sender; None for any rank.
            tag (int): tag of the message.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` without waiting for the operation.

        Returns:
            int: the rank of the sender; or a Work with this result.

        Raises:
            ValueError: the rank does not exist, or is this one.
            CollectiveError: also with cause ``mismatch``, if the message has another size or type.

        Example:
            >>> import rdzv
            >>> def first_to_come(group, array):
            ...     return group.recv(array, source=None)
        """
        result = self._native.recv(tensor, source, tag, timeout, async_)
        return _work(result, _source) if async_ else result

    def barrier(self, timeout=None, *, async_=False):
        """Waits until all ranks have called this method.

        Args:
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` without waiting for the operation.

        Returns:
            None, or a Work.

        Raises:
            CollectiveTimeout: a rank did not arrive in time; the group is broken.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.barrier()
        """
        return _work(self._native.barrier(timeout, async_))

    def monitored_barrier(self, timeout=None):
        """Waits until all ranks have called this method; names missing ranks.

        Args:
            timeout (float | datetime.timedelta | None): maximum time that rank 0 waits for all
                other ranks, in seconds; None: the group's.

        Returns:
            None.

        Raises:
            CollectiveTimeout: at rank 0, the text names every missing rank with its last known
                call. ``peers`` contains the missing ranks. The group is broken.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.monitored_barrier(timeout=5)
        """
        self._native.monitored_barrier(timeout)

    def all_gather_objects(self, obj, *, trusted=True, timeout=None, async_=False):
        """Copies one object of each rank to all ranks.

        Objects are sent as pickles. The buffers of arrays are not copied into the pickles.

        Args:
            obj: any object that can be pickled.
            trusted (bool): True if pickles from other ranks may refer to any function or class.
                With False, they can contain only builtin types, numpy arrays, and a few types of
                ``collections`` and ``datetime``.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the group's.
            async_ (bool): True to return a :class:`Work` that has the list, without waiting.

        Returns:
            list: the objects, in the order of the ranks; or a Work.

        Raises:
            pickle.UnpicklingError: with ``trusted=False``, an object refers to something that is
                not allowed. The group stays usable.
            TypeError, AttributeError or pickle.PicklingError: the object cannot be pickled; nothing is sent.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.all_gather_objects({"loss": 0.5})
            [{'loss': 0.5}]
        """
        from rdzv._pickles import dump, load

        result = self._native.all_gather_bytes(dump(obj), timeout, async_)
        if async_:
            return Work(result, lambda native: [load(data, trusted) for data in native.objects()])
        return [load(data, trusted) for data in result]

    def broadcast_object(self, obj=None, root=0, *, trusted=True, timeout=None):
        """Copies an object of the rank ``root`` to all ranks.

        Args:
            obj: any object that can be pickled; used only at the root.
            root (int): rank that has the object.
            trusted (bool): as for :meth:`all_gather_objects`.
            timeout (float | datetime.timedelta | None): time limit in seconds; None: the limit of the group.

        Returns:
            The object; at the root ``obj`` itself.

        Raises:
            pickle.UnpicklingError, TypeError, AttributeError, pickle.PicklingError, CollectiveError: as for
                :meth:`all_gather_objects`.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.broadcast_object("settings")
            'settings'
        """
        from rdzv._pickles import dump, load

        if root == self._native.rank:
            self._native.broadcast_bytes(dump(obj), root, timeout)
            return obj
        return load(self._native.broadcast_bytes(None, root, timeout), trusted)

    def rebuild(self, store):
        """Creates the group again after a failure, with the next epoch.

        All remaining ranks must call this method. A new process that replaces a rank joins with
        ``Group(..., epoch=...)``. The method closes this group.

        Args:
            store (Store): store through which the ranks find each other. It can be the store of the
                last epoch.

        Returns:
            Group: the next group, with the same name, rank, world size and timeout.

        Raises:
            CollectiveTimeout: ranks are missing; ``peers`` names them.
            CollectiveError: as for :class:`Group`.

        Example:
            >>> import rdzv
            >>> store = rdzv.HashStore()
            >>> group = rdzv.Group(store, 0, 1).rebuild(store)
            >>> group.epoch
            1
        """
        old = self._native
        self.close()
        group = Group.__new__(Group)
        group._native = _rdzv.Group(
            store, old.rank, old.world_size, old.name, old.timeout, old.epoch + 1, old.address
        )
        return group

    def close(self):
        """Leaves the group.

        Unfinished operations of this rank fail, and so do operations of ranks that wait for this
        rank. A second call does nothing. The end of a ``with`` block closes the group.

        Returns:
            None.

        Example:
            >>> import rdzv
            >>> rdzv.Group(rdzv.HashStore(), 0, 1).close()
        """
        caller = sys._getframe(1)
        self._native.close(f"{caller.f_code.co_filename}:{caller.f_lineno}")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        caller = sys._getframe(1)
        self._native.close(f"{caller.f_code.co_filename}:{caller.f_lineno}")

    def __repr__(self):
        native = self._native
        return f"Group(name={native.name!r}, rank={native.rank}, world_size={native.world_size}, epoch={native.epoch})"


def _source(native):
    return native.source()


for _class in (Group, Work, premul_sum):
    _class.__module__ = "rdzv"
