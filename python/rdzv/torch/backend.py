"""Backend ``rdzv`` of ``torch.distributed``, for tensors on the CPU.

torch finds the backend through the entry point ``torch.distributed.backends``. ``init_process_group("rdzv")``,
``init_process_group("cpu:rdzv,cuda:nccl")`` and ``new_group(backend="rdzv")`` therefore need no import.
"""

import collections
import threading
import time
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as _Backend
from torch._C._distributed_c10d import ReduceOp as _ReduceOp
from torch._C._distributed_c10d import Work as _Work

try:
    from torch._C._distributed_c10d import ErrorType

    # Older releases raise an error for a backend in Python.
    _Backend(0, 1)
except (ImportError, TypeError):
    raise ImportError(
        f"the backend 'rdzv' of torch.distributed needs torch 2.14 or newer, but this is torch {torch.__version__}; "
        "use gloo, or rdzv.Group, which needs no torch"
    ) from None

from rdzv import _rdzv
from rdzv._errors import CollectiveError, CollectiveTimeout, Error

# By the number of the operator, because a comparison of two torch operators takes a microsecond.
_OPERATORS = {
    _ReduceOp.SUM.value: "sum",
    _ReduceOp.AVG.value: "avg",
    _ReduceOp.PRODUCT.value: "prod",
    _ReduceOp.MIN.value: "min",
    _ReduceOp.MAX.value: "max",
    _ReduceOp.BAND.value: "band",
    _ReduceOp.BOR.value: "bor",
    _ReduceOp.BXOR.value: "bxor",
}
_NO_TIME = timedelta(0)
# torch keeps only the C++ half of a backend, and calls into a dropped Python half fail. So backends
# stay until they are destroyed. The last destroyed ones stay too: calls into them report the end.
_kept = set()
_destroyed = collections.deque(maxlen=64)


def _operator(op):
    """Returns the name of an operator, and its factor."""
    name = _OPERATORS.get(op.op.value)
    if name is not None:
        return name, None
    # A premultiplied sum always has a factor.
    factor = op.factor
    return "premul_sum", factor.item() if isinstance(factor, torch.Tensor) else float(factor)


def _limit(timeout):
    """Returns the time limit of one call; None for the limit of the group."""
    return timeout if timeout > _NO_TIME else None


def _translated(error):
    """Returns an error of the group; a timeout begins with torch's text.

    Users of torch search for this text. The text of the group follows.
    """
    if isinstance(error, CollectiveTimeout) and error.elapsed is not None:
        text = f"rdzv: Timed out waiting {round(error.elapsed * 1000)}ms: {error}"
        translated = type(error)(
            text,
            rank=error.rank,
            peer=error.peer,
            peers=error.peers,
            operation=error.operation,
            cause=error.cause,
            elapsed=error.elapsed,
        )
        return translated.with_traceback(error.__traceback__)
    return error


class _QuietStore:
    """torch store whose waits write no warnings.

    torch's own waits write one at the end of each slice of time.
    """

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def wait(self, keys, timeout):
        # No other wait of torch can be interrupted: Ctrl-C ends this one between two polls.
        end = time.monotonic() + timeout.total_seconds()
        pause = 0.001
        while not self._store.check(keys):
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"timeout in the wait for {keys}")
            time.sleep(min(pause, left))
            pause = min(2 * pause, 0.02)


class RdzvWork(_Work):
    """Asynchronous operation of the backend."""

    def __init__(self, native, outputs, after=None):
        super().__init__()
        self._works = native if isinstance(native, list) else [native]
        self._outputs = outputs
        self._after = after
        self._future = None

    def _finish(self):
        after, self._after = self._after, None
        if after is not None:
            after()

    def wait(self, timeout=None):
        """Waits for the operation.

        Returns True once it has ended, or raises the error of the operation.
        """
        limit = timeout if timeout is not None and timeout > _NO_TIME else None
        try:
            for native in self._works:
                if not native.wait(limit):
                    milliseconds = round(limit.total_seconds() * 1000)
                    raise CollectiveTimeout(f"rdzv: Timed out waiting {milliseconds}ms for an operation; it continues")
        except CollectiveTimeout as error:
            raise _translated(error) from None
        self._finish()
        return True

    def get_future(self):
        """Returns a future with the outputs of the operation."""
        _asked.work = self
        if self._future is None:
            self._future = torch.futures.Future()
            waiting = [len(self._works)]

            def ended():
                waiting[0] -= 1
                if waiting[0] > 0:
                    return
                try:
                    for native in self._works:
                        native.wait()
                    self._finish()
                except Exception as error:  # noqa: BLE001, the future carries it
                    self._future.set_exception(_translated(error))
                else:
                    self._future.set_result(self._outputs)

            for native in self._works:
                native.on_done(ended)
            if not self._works:
                self._future.set_result(self._outputs)
        return self._future

    def is_completed(self):
        """Returns True if the operation has ended."""
        return all(native.done() for native in self._works)

    def source(self):
        """Returns the rank that sent the message, once it has arrived."""
        return self._works[0].source()


# Work whose future this thread requested last.
_asked = threading.local()


def _behind(work):
    """Returns the :class:`RdzvWork` behind a work of torch; None if there is none.

    torch passes only `wait` and `get_future` on to a work in Python.
    """
    _asked.work = None
    try:
        work.get_future()
    except RuntimeError:
        pass
    return _asked.work


def _forward_state():
    """Makes torch's works report the state of a :class:`RdzvWork`.

    They report its end, and the sender of a received message. Otherwise `work.is_completed()` would
    always be false, and `dist.recv(tensor)` would raise after the message arrived.
    """
    of_torch = _Work.is_completed

    def is_completed(work, of_torch=of_torch):
        if of_torch(work):
            return True
        # Without a group of rdzv no work is one of rdzv.
        ours = _behind(work) if _kept and type(work) is _Work else None
        return ours is not None and ours.is_completed()

    is_completed.__doc__ = of_torch.__doc__
    _Work.is_completed = is_completed
    for name in ("source_rank", "_source_rank"):
        of_torch = getattr(_Work, name)

        def source_rank(work, of_torch=of_torch):
            try:
                return of_torch(work)
            except RuntimeError:
                ours = _behind(work)
                if ours is None:
                    raise
                return ours.source()

        source_rank.__doc__ = of_torch.__doc__
        setattr(_Work, name, source_rank)



class _Unconnected:
    """Group before its first reconfiguration."""

    def abort(self):
        pass

    def close(self, reason):
        pass

    def set_timeout(self, timeout):
        pass

    def __getattr__(self, name):
        raise RuntimeError(f"{name}: call torch.distributed._reconfigure first")


class RdzvBackend(_Backend):
    """One rank in a process group of torch.

    The backend uses the native half of :class:`rdzv.Group`.
    """

    # All of these are defined: if torch finds one only in the base class, it calls itself
    # endlessly.
    supports_splitting = True
    supports_coalescing = True
    supports_shrinking = False
    supports_reconfigure = True
    supports_window = False
    _supports_time_estimate = False
    options = None

    def __init__(self, store, rank, size, options, connects=True):
        super().__init__(rank, size)
        self.options = options
        self._store = store
        self._rank = rank
        self._size = size
        self._handle = uuid.uuid4().hex
        self._coalesced = None
        self._error = ErrorType.SUCCESS
        self._native = _Unconnected()
        if connects:
            # A store may have had a group of this name before. All ranks of one group arrive before
            # any rank of the next group.
            epoch = (store.add("rdzv/arrivals", 1) - 1) // size
            self._connect(store, options._timeout, epoch)
        _kept.add(self)

    def _connect(self, store, timeout, epoch):
        store = _QuietStore(store)
        self._native = _rdzv.Group(store, self._rank, self._size, "torch", timeout, epoch, None)

    def getBackendName(self):
        return "rdzv"

    # Results of calls.

    def _end(self, native, outputs, after=None):
        """Returns the result of a call: the work, or None if it has ended."""
        if native is None:
            if after is not None:
                after()
            return None
        if self._coalesced is not None:
            self._coalesced.append((native, after))
        return RdzvWork(native, outputs, after)

    def _failed(self, error):
        if isinstance(error, CollectiveError):
            timed_out = isinstance(error, CollectiveTimeout)
            self._error = ErrorType.TIMEOUT if timed_out else ErrorType.COMM_ERROR
        return _translated(error)

    # Collective operations. Synchronous ones run on the calling thread.

    def allreduce(self, tensors, opts):
        (tensor,) = tensors
        if tensor.is_sparse:
            return self._sparse_all_reduce(tensor, opts)
        op, factor = _operator(opts.reduceOp)
        try:
            native = self._native.all_reduce(tensor, op, factor, _limit(opts.timeout), opts.asyncOp)
        except Error as error:
            raise self._failed(error) from None
        if native is None:
            return None
        return self._end(native, tensors)

    def allreduce_coalesced(self, tensors, opts):
        op, factor = _operator(opts.reduceOp)
        works = []
        for tensor in tensors:
            native = self._call("all_reduce", tensor, op, factor, _limit(opts.timeout), opts.asyncOp)
            if native is not None:
                works.append(native)
        return RdzvWork(works, tensors) if works else None

    def _call(self, name, *args):
        try:
            return getattr(self._native, name)(*args)
        except Error as error:
            raise self._failed(error) from None

    def _sparse_all_reduce(self, tensor, opts):
        if _operator(opts.reduceOp)[0] != "sum":
            raise ValueError("all_reduce of a sparse tensor: only sum is supported")
        tensor._coalesced_(False)
        whole = tensor.coalesce()
        indices, values = whole.indices(), whole.values()
        limit = _limit(opts.timeout)
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]
        self._call("all_gather", counts, torch.tensor([indices.shape[1]]), limit, False)
        most = max(1, max(int(count) for count in counts))

        def gathered(part, dim):
            padding = list(part.shape)
            padding[dim] = most - part.shape[dim]
            part = torch.cat([part, part.new_zeros(padding)], dim).contiguous()
            parts = [torch.empty_like(part) for _ in range(self._size)]
            self._call("all_gather", parts, part, limit, False)
            return [part.narrow(dim, 0, int(count)) for part, count in zip(parts, counts)]

        all_indices = torch.cat(gathered(indices, 1), 1)
        all_values = torch.cat(gathered(values, 0), 0)
        summed = torch.sparse_coo_tensor(all_indices, all_values, tensor.shape).coalesce()
        tensor.copy_(summed)
        return _ended([tensor]) if opts.asyncOp else None

    allreduce_sparse = allreduce

    def broadcast(self, tensors, opts):
        (tensor,) = tensors
        native = self._call("broadcast", tensor, opts.rootRank, _limit(opts.timeout), opts.asyncOp)
        return self._end(native, tensors)

    def reduce(self, tensors, opts):
        (tensor,) = tensors
        op, factor = _operator(opts.reduceOp)
        native = self._call("reduce", tensor, opts.rootRank, op, factor, _limit(opts.timeout), opts.asyncOp)
        return self._end(native, tensors)

    def allgather(self, output_lists, inputs, opts):
        (outputs,), (input,) = output_lists, inputs
        targets, after = _writable(outputs)
        native = self._call("all_gather", targets, input.contiguous(), _limit(opts.timeout), opts.asyncOp)
        return self._end(native, output_lists, after)

    def all_gather_single(self, output, input, opts):
        native = self._call("all_gather", output, input.contiguous(), _limit(opts.timeout), opts.asyncOp)
        return self._end(native, output)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        return self._each(self.all_gather_single, outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, output_lists, inputs, opts):
        works, afters = [], []
        for index, input in enumerate(inputs):
            targets, after = _writable([outputs[index] for outputs in output_lists])
            native = self._call("all_gather", targets, input.contiguous(), _limit(opts.timeout), opts.asyncOp)
            _collect(native, after, works, afters)
        return _joined(works, afters, output_lists)

    def reduce_scatter(self, outputs, input_lists, opts):
        (output,), (inputs,) = outputs, input_lists
        op, factor = _operator(opts.reduceOp)
        inputs = [input.contiguous() for input in inputs]
        native = self._call("reduce_scatter", output, inputs, op, factor, _limit(opts.timeout), opts.asyncOp)
        return self._end(native, outputs)

    def reduce_scatter_single(self, output, input, opts):
        op, factor = _operator(opts.reduceOp)
        input = input.contiguous()
        native = self._call("reduce_scatter", output, input, op, factor, _limit(opts.timeout), opts.asyncOp)
        return self._end(native, output)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        return self._each(self.reduce_scatter_single, outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _each(self, call, outputs, inputs, opts):
        works = [call(output, input, opts) for output, input in zip(outputs, inputs)]
        works = [native for work in works if work is not None for native in work._works]
        return RdzvWork(works, outputs) if works else None

    def all_to_all_single(self, output, input, output_splits, input_splits, opts):
        native = self._call(
            "all_to_all",
            output,
            input.contiguous(),
            output_splits or None,
            input_splits or None,
            _limit(opts.timeout),
            opts.asyncOp,
        )
        return self._end(native, output)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs, inputs, opts):
        targets, after = _writable(outputs)
        inputs = [input.contiguous() for input in inputs]
        native = self._call("all_to_all", targets, inputs, None, None, _limit(opts.timeout), opts.asyncOp)
        return self._end(native, outputs, after)

    def gather(self, output_lists, inputs, opts):
        (input,) = inputs
        targets = after = None
        if opts.rootRank == self._rank:
            targets, after = _writable(output_lists[0])
        native = self._call(
            "gather", targets, input.contiguous(), opts.rootRank, _limit(opts.timeout), opts.asyncOp
        )
        return self._end(native, output_lists, after)

    def gather_single(self, output, input, opts):
        target = output if opts.rootRank == self._rank else None
        native = self._call("gather", target, input.contiguous(), opts.rootRank, _limit(opts.timeout), opts.asyncOp)
        return self._end(native, output)

    gather_into_tensor = gather_single

    def scatter(self, outputs, input_lists, opts):
        (output,) = outputs
        inputs = None
        if opts.rootRank == self._rank:
            inputs = [input.contiguous() for input in input_lists[0]]
        native = self._call("scatter", output, inputs, opts.rootRank, _limit(opts.timeout), opts.asyncOp)
        return self._end(native, outputs)

    def barrier(self, opts):
        native = self._call("barrier", _limit(opts.timeout), opts.asyncOp)
        return self._end(native, [])

    def monitored_barrier(self, opts, wait_all_ranks=False):
        # An unset limit is negative. With limit 0, only ranks that have already arrived pass.
        given = opts.timeout
        limit = None if given < _NO_TIME else max(given, timedelta(microseconds=1))
        try:
            self._native.monitored_barrier(limit)
        except CollectiveError as error:
            self._failed(error)
            seconds = limit.total_seconds() if limit is not None else self._native.timeout
            after = f"in {round(seconds * 1000)} ms; {error}"
            if given == _NO_TIME or self._rank != 0:
                if given == _NO_TIME or error.peer == 0:
                    text = f"Rank {self._rank} timed out in monitoredBarrier {after}"
                else:
                    text = (
                        f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting "
                        f"for send/recv from rank 0. Please check rank 0 logs for faulty rank. {error}"
                    )
            elif wait_all_ranks and len(error.peers) > 1:
                ranks = ", ".join(str(peer) for peer in error.peers)
                text = f"Ranks {ranks} failed to pass monitoredBarrier {after}"
            else:
                text = f"Rank {error.peer} failed to pass monitoredBarrier {after}"
            raise type(error)(text, rank=self._rank, peer=error.peer, peers=error.peers, cause=error.cause) from None

    # Messages.

    def send(self, tensors, dst, tag):
        (tensor,) = tensors
        return self._end(self._call("send", tensor.contiguous(), dst, tag, None, True), tensors)

    def recv(self, tensors, src, tag):
        (tensor,) = tensors
        return self._end(self._call("recv", tensor, src, tag, None, True), tensors)

    def recv_anysource(self, tensors, tag):
        (tensor,) = tensors
        native = self._call("recv", tensor, None, tag, None, True)
        return self._end(native, tensors)

    # Several operations as one.

    def start_coalescing(self):
        self._coalesced = []

    def end_coalescing(self):
        coalesced, self._coalesced = self._coalesced or [], None
        works = [native for native, _ in coalesced]
        afters = [after for _, after in coalesced if after is not None]
        return RdzvWork(works, [], _all_of(afters))

    # End of the group.

    def set_timeout(self, timeout):
        self.options._timeout = timeout
        self._native.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def shutdown(self):
        self._native.close("destroy_process_group()")
        if self in _kept:
            _kept.remove(self)
            _destroyed.append(self)

    def abort(self):
        self._native.abort()

    def get_reconfigure_handle(self):
        return self._handle

    def reconfigure(self, opts):
        handles = opts.handles if isinstance(opts.handles, list) else sorted(opts.handles)
        rank = handles.index(self._handle) if self._handle in handles else None
        if (rank, len(handles)) != (self._rank, self._size):
            # torch takes them from the C++ half, which has no means to change them.
            raise ValueError(
                f"rank {self._rank} of {self._size} cannot become rank {rank} of {len(handles)}: a backend in Python "
                "cannot change its rank or its size"
            )
        self._native.abort()
        self._error = ErrorType.SUCCESS
        timeout = self.options._timeout if opts.timeout is None else opts.timeout
        self._connect(dist.PrefixStore(f"reconfigure/{opts.uuid}", self._store), timeout, 0)
        self._native.set_timeout(self.options._timeout)
        return _ended([])

    def split(self, store, ranks, opts):
        if self._rank not in ranks:
            return None
        if opts is None:
            opts = _options(self.options._timeout)
        opts.global_ranks_in_group = list(ranks)
        return type(self)(store, list(ranks).index(self._rank), len(ranks), opts)

    def eager_connect_single_device(self, device):
        # Nothing to do: connections are made at their first use.
        pass

    def get_error(self):
        return self._error

    def _get_sequence_number_for_group(self):
        return self._native.calls

    def _set_sequence_number_for_group(self):
        # Every rank counts from 0.
        pass


def _ended(outputs):
    return RdzvWork([], outputs)


def _writable(outputs):
    """Returns contiguous tensors for `outputs`, and a function.

    The function copies them back. It is None if `outputs` are contiguous.
    """
    if all(output.is_contiguous() for output in outputs):
        return outputs, None
    targets = [torch.empty(output.shape, dtype=output.dtype) for output in outputs]

    def after():
        for output, target in zip(outputs, targets):
            output.copy_(target)

    return targets, after


def _collect(native, after, works, afters):
    if native is not None:
        works.append(native)
        if after is not None:
            afters.append(after)
    elif after is not None:
        after()


def _all_of(afters):
    if not afters:
        return None

    def after():
        for one in afters:
            one()

    return after


def _joined(works, afters, outputs):
    return RdzvWork(works, outputs, _all_of(afters)) if works else None


def _options(timeout):
    return _Backend.Options("rdzv", timeout=timeout)


def create(opts, backend_options=None, backend=RdzvBackend):
    """Creates the backend of one group; torch calls this function.

    Args:
        opts (torch.distributed.distributed_c10d._DistributedBackendOptions): store, rank, size and
            timeout.
        backend_options (torch.distributed.Backend.Options | None): options of the caller.
        backend (type[RdzvBackend]): class of the backend.

    Returns:
        RdzvBackend: the backend, once all ranks have joined. With ``enable_reconfigure``, it is not
            connected yet.

    Raises:
        rdzv.CollectiveError: ranks are missing, or do not match.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("rdzv", store=dist.HashStore(), rank=0, world_size=1)
        >>> dist.get_backend()
        'rdzv'
        >>> dist.destroy_process_group()
    """
    options = backend_options if isinstance(backend_options, _Backend.Options) else _options(opts.timeout)
    options._timeout = opts.timeout
    options.global_ranks_in_group = opts.global_ranks_in_group
    options.group_name = opts.group_id
    connects = not getattr(opts, "enable_reconfigure", False)
    return backend(opts.store, opts.group_rank, opts.group_size, options, connects)


def register():
    """Registers the backend ``rdzv`` with torch, which calls this entry point.

    The import of this module raises ImportError if torch is too old.

    Returns:
        None.

    Example:
        >>> import rdzv.torch.backend
        >>> rdzv.torch.backend.register()
    """
    if "RDZV" in dist.Backend._plugins:
        return
    _forward_state()
    dist.Backend.register_backend("rdzv", create, extended_api=True, devices=["cpu"])
