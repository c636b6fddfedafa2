"""Process groups of CPU ranks: collective operations on arrays, messages between two ranks, objects."""

import sys

from rdzv import _rdzv
from rdzv._errors import CollectiveTimeout


class _Operator(tuple):
    """A reduction with a factor: its name and the factor."""

    __slots__ = ()


def premul_sum(factor):
    """Returns the reduction that multiplies the values of this rank by a factor before they are summed.

    Args:
        factor (float): the factor of this rank; ranks may pass different ones. Finite.

    Returns:
        An operator for the argument ``op`` of :class:`Group`'s reductions. Floating-point arrays only.

    Raises:
        TypeError: the factor is no number.

    Example:
        >>> import rdzv
        >>> rdzv.premul_sum(0.25)
        ('premul_sum', 0.25)
    """
    return _Operator(("premul_sum", float(factor)))


def _named(op):
    """The name and the factor of an operator that is no plain text."""
    if isinstance(op, _Operator):
        return op
    if isinstance(op, str):
        return op, None
    raise TypeError(f"op must be a str or premul_sum(factor), not {type(op).__name__}")


class Work:
    """An operation that goes on by itself; the result of a call with ``async_=True``.

    It can be waited for, awaited in any event loop, and given functions to call at its end. Dropping it does not end the
    operation. The arrays of the call belong to the operation until it has ended.

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
            timeout (float | datetime.timedelta | None): longest time to wait, in seconds. None: as long as the
                operation takes, which has the time limit of its call.

        Returns:
            None; the sender, an int, of a receive; the objects, a list, of ``all_gather_objects``.

        Raises:
            CollectiveTimeout: the operation has not ended in time; it goes on. Or it ran into its own limit.
            CollectiveError: the operation failed.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.barrier(async_=True).wait(timeout=10)
        """
        if not self._native.wait(timeout):
            raise CollectiveTimeout(f"the operation has not ended within {timeout} s; it goes on", cause="timeout")
        return self._result()

    def done(self):
        """Says whether the operation has ended, with success or without.

        Returns:
            bool: true once it has ended.

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
        """Has a function called once the operation has ended, with success or without.

        Args:
            function: called with this work, once. If the operation has ended, here and now; else by the thread that
                runs the operations of the group, so that it must not wait for one of them. An exception in it is
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
    """One rank's membership in a group of processes that work on the same thing.

    Returns when all ranks have joined. The ranks find one another through the store, which is not needed afterwards.
    Groups are context managers, which close them.

    All ranks call the same operations in the same order, with arrays of the same size and type. Arrays are numpy arrays,
    torch tensors on the CPU, ``bytearray``, and everything that has a buffer or ``__dlpack__``, such as JAX arrays on the
    host (which are read-only: they can be inputs). They have to be contiguous. Element types: bool, 8 to 64 bit
    integers with and without sign, float16, bfloat16, float32, float64; complex64 and complex128 can be summed and
    averaged; float8 can be moved.

    Every operation raises these errors, beside those that its own text lists. ``TypeError``: the argument is no array,
    its type is not carried, or the type does not have the operator. ``ValueError``: the array is read-only or not
    contiguous. Nothing is sent for either, and the group stays usable. ``CollectiveError``: the operation failed, and
    the group is broken; see :meth:`rebuild`.

    Args:
        store (Store): where the ranks find one another.
        rank (int): the number of this process in the group, from 0.
        world_size (int): number of ranks.
        name (str): tells groups in one store apart.
        timeout (float | datetime.timedelta): time limit of joining and then of each operation, in seconds;
            ``math.inf`` for none.
        epoch (int): number of the group among those of its name, from 0; see :meth:`rebuild`.
        address (str | None): the IP address of this host that the other ranks can reach. None: the one at which this
            host reaches the store, so loopback with a store that is here or has no connection.

    Raises:
        ValueError: a rank outside of the world size, a timeout that is not positive, an address that is none.
        CollectiveTimeout: ranks are missing; ``peers`` names them.
        CollectiveError: the rank is taken, or the ranks have different ideas of the world size.

    Attributes:
        rank (int): the number of this process.
        world_size (int): number of ranks.
        epoch (int): number of the group among those of its name.

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
        """The number of this process in the group, an int from 0.

        Returns:
            int: the rank.

        """
        return self._native.rank

    @property
    def world_size(self):
        """Number of ranks in the group.

        Returns:
            int: at least 1.

        """
        return self._native.world_size

    @property
    def epoch(self):
        """Number of the group among those of its name, from 0; each :meth:`rebuild` adds one.

        Returns:
            int: the epoch.

        """
        return self._native.epoch

    def all_reduce(self, tensor, op="sum", *, timeout=None, async_=False):
        """Combines the arrays of all ranks, element by element; every rank gets the result, the same to the last bit.

        Args:
            tensor: array of any shape, writable; the result replaces its values.
            op (str): ``sum``, ``avg``, ``prod``, ``min``, ``max``, ``band``, ``bor``, ``bxor`` or
                :func:`premul_sum`. Integers wrap around, and their average is rounded towards zero.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work`.

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
        """Combines the arrays of all ranks, element by element; the rank ``root`` gets the result.

        Args:
            tensor: array of any shape; at the root the result replaces its values, elsewhere it stays as it is.
            root (int): the rank that gets the result.
            op (str): as for :meth:`all_reduce`.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work`.

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
            tensor: array of any shape, the same on all ranks; its values are replaced, except at the root.
            root (int): the rank that has the values.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work`.

        Returns:
            None, or a Work.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.broadcast(bytearray(8))
        """
        return _work(self._native.broadcast(tensor, root, timeout, async_))

    def all_gather(self, output, input, *, timeout=None, async_=False):
        """Brings the arrays of all ranks to all ranks.

        Args:
            output: array with ``world_size`` times the elements of ``input``, which gets them in the order of the ranks;
                or a list of ``world_size`` arrays.
            input: array of any shape. It may be the part of ``output`` that belongs to this rank.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work`.

        Returns:
            None, or a Work.

        Raises:
            ValueError: the sizes do not fit, or the arrays share memory.

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
        """Combines the arrays of all ranks, element by element; each rank gets its part of the result.

        Args:
            output: array that gets the part of this rank, the ``rank``-th.
            input: array with ``world_size`` times the elements of ``output``, or a list of ``world_size`` arrays. It
                stays as it is.
            op (str): as for :meth:`all_reduce`.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work`.

        Returns:
            None, or a Work.

        Raises:
            ValueError: the sizes do not fit.

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
        """Sends a part of ``input`` to every rank, and receives a part of ``output`` from every rank.

        Args:
            output: array, or a list of ``world_size`` arrays, the ``n``-th of which rank ``n`` fills.
            input: array, or a list of ``world_size`` arrays, the ``n``-th of which goes to rank ``n``.
            output_splits (list[int] | None): number of rows (entries of the first dimension) from each rank; None
                means equal parts. If one rank passes splits, all do.
            input_splits (list[int] | None): number of rows for each rank.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work`.

        Returns:
            None, or a Work.

        Raises:
            ValueError: the splits do not add up, or the arrays share memory.

        Example:
            >>> import rdzv
            >>> output = bytearray(2)
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.all_to_all(output, b"ab", [2], [2])
        """
        return _work(self._native.all_to_all(output, input, output_splits, input_splits, timeout, async_))

    def gather(self, output, input, root=0, *, timeout=None, async_=False):
        """Brings the arrays of all ranks to the rank ``root``.

        Args:
            output: at the root an array with ``world_size`` times the elements of ``input``, or a list of
                ``world_size`` arrays; None on the other ranks.
            input: array of any shape.
            root (int): the rank that gets them.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work`.

        Returns:
            None, or a Work.

        Raises:
            ValueError: the sizes do not fit, or ``output`` is on the wrong side.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.gather([bytearray(2)], b"ab")
        """
        return _work(self._native.gather(output, input, root, timeout, async_))

    def scatter(self, output, input, root=0, *, timeout=None, async_=False):
        """Hands each rank its part of what the rank ``root`` has.

        Args:
            output: array that gets the part of this rank.
            input: at the root an array with ``world_size`` times the elements of ``output``, or a list of
                ``world_size`` arrays; None on the other ranks.
            root (int): the rank that has them.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work`.

        Returns:
            None, or a Work.

        Raises:
            ValueError: the sizes do not fit, or ``input`` is on the wrong side.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.scatter(bytearray(2), b"ab")
        """
        return _work(self._native.scatter(output, input, root, timeout, async_))

    def send(self, tensor, to, tag=0, *, timeout=None, async_=False):
        """Sends an array to one rank, which calls :meth:`recv`. The other ranks take no part.

        Returns when the values are on their way, and the array is free; with more than 64 KiB that is when the
        other rank receives them. Messages need no order with the collective operations.

        Args:
            tensor: array of any shape.
            to (int): the receiver, another rank.
            tag (int): 0 to 4294967295; a receive takes a message with its tag.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work`.

        Returns:
            None, or a Work.

        Raises:
            ValueError: there is no such rank, or it is this one.

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
            tensor: array with as many elements as the message has, writable.
            source (int | None): the sender; None for any.
            tag (int): the tag of the message.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work`.

        Returns:
            int: the rank that sent it; or a Work, whose result that is.

        Raises:
            ValueError: there is no such rank, or it is this one.
            CollectiveError: also with cause ``mismatch``, if the message is of another size or type.

        Example:
            >>> import rdzv
            >>> def first_to_come(group, array):
            ...     return group.recv(array, source=None)
        """
        result = self._native.recv(tensor, source, tag, timeout, async_)
        return _work(result, _source) if async_ else result

    def barrier(self, timeout=None, *, async_=False):
        """Waits until all ranks have called it.

        Args:
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work`.

        Returns:
            None, or a Work.

        Raises:
            CollectiveTimeout: a rank did not come; the group is broken.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.barrier()
        """
        return _work(self._native.barrier(timeout, async_))

    def monitored_barrier(self, timeout=None):
        """Waits until all ranks have called it, and finds out which ones have not.

        Args:
            timeout (float | datetime.timedelta | None): longest time that rank 0 waits for all others, in seconds;
                None is the group's.

        Returns:
            None.

        Raises:
            CollectiveTimeout: at rank 0 it names every rank that has not come, also in ``peers``, with the call that each
                was last heard of in. The group is broken.

        Example:
            >>> import rdzv
            >>> with rdzv.Group(rdzv.HashStore(), 0, 1) as group:
            ...     group.monitored_barrier(timeout=5)
        """
        self._native.monitored_barrier(timeout)

    def all_gather_objects(self, obj, *, trusted=True, timeout=None, async_=False):
        """Brings one object of each rank to all ranks.

        Objects travel as pickles; the buffers of arrays are not copied into them.

        Args:
            obj: any object that can be pickled.
            trusted (bool): whether pickles of the other ranks may name anything, as the code of the job itself may. With
                False they can hold builtin types and numpy arrays only.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.
            async_ (bool): whether to return at once, with a :class:`Work` that has the list.

        Returns:
            list: the objects, in the order of the ranks; or a Work.

        Raises:
            pickle.UnpicklingError: with ``trusted=False``, an object names something that it may not. The group is good.
            TypeError: the object cannot be pickled; nothing is sent.

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
            obj: any object that can be pickled; counts at the root only.
            root (int): the rank that has it.
            trusted (bool): as for :meth:`all_gather_objects`.
            timeout (float | datetime.timedelta | None): time limit in seconds; None is the group's.

        Returns:
            The object; at the root ``obj`` itself.

        Raises:
            pickle.UnpicklingError, TypeError, CollectiveError: as for :meth:`all_gather_objects`.

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
        """Makes the group anew after a failure, under the next epoch. All ranks have to.

        A rank that was replaced by a new process joins with ``Group(..., epoch=...)``. This group is closed.

        Args:
            store (Store): where the ranks find one another; a store that the last epoch used will do.

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
        """Leaves the group. Operations of this rank that have not ended fail, and so do those of ranks that wait for it.

        Closing twice is allowed. Leaving a ``with`` block closes the group.

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
