"""Contexts of distributed autograd, and their tensors in calls.

The module belongs to :mod:`rdzv.torch.rpc`. A *context* exists on all workers of its calls. A
*message* has the tensors of one call or one answer that need gradients. Its sender keeps the edges
of the graph where their gradients continue (`Sent`). Its receiver gets tensors whose `grad_fn` ends
the graph there (`Received`). `_backward` carries the gradients.
"""

from __future__ import annotations

import collections
import itertools
import math
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge

from rdzv.rpc import _functions
from rdzv.rpc._future import Future

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rdzv.rpc._agent import RdzvAgent

# Number of bits for the numbers of a worker; its rank is above them, as in torch.
_BITS = 48
# Number of ended contexts that are remembered, for late calls.
_REMEMBERED = 4096

# Mark of a message: context, number of the message, and indices of the tensors. The number is 0
# without tensors that need gradients.
Mark = tuple[int, int, list[int]]

_agent: RdzvAgent | None = None
_lock = threading.Lock()
_contexts: dict[int, Context] = {}
_ended: collections.OrderedDict[int, None] = collections.OrderedDict()
_numbers = itertools.count(1)
_local = threading.local()


class _Touch(torch.autograd.Function):
    """Creates a node that follows a tensor of any layout."""

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.empty(0)


class _Edge(GradientEdge):
    """Edge that can own the graph behind its node."""

    owner: torch.Tensor | None = None


def _edge(tensor: torch.Tensor) -> GradientEdge:
    node, index = tensor.grad_fn, tensor.output_nr
    if node is not None and not isinstance(node, torch._C._FunctionBase):
        return GradientEdge(node, index)
    # torch frees a node in Python, and the graph behind it, with its last tensor. An edge does not
    # prevent that.
    with torch.enable_grad():
        owner = _Touch.apply(tensor)
    if node is None:
        node, index = owner.grad_fn.next_functions[0]
        return GradientEdge(node, index)
    edge = _Edge(node, index)
    edge.owner = owner
    return edge


# Type of these nodes.
_LEAF: type = type(_edge(torch.empty(0, requires_grad=True)).node)


def start(agent: RdzvAgent) -> None:
    """Prepares this module, before the agent serves calls."""
    global _agent, _numbers
    stop()
    _agent, _numbers = agent, itertools.count(1)


def stop() -> None:
    global _agent
    _agent = None
    _local.context = None
    with _lock:
        _contexts.clear()
        _ended.clear()


def _me() -> int:
    assert _agent is not None
    return _agent.get_worker_info().id


def _next_number() -> int:
    return _me() << _BITS | next(_numbers)


def _call(worker: int, function: Any, *args: Any) -> Future[Any]:
    # The loss of a worker is detected, but the duration of its part of a pass is unknown.
    assert _agent is not None
    return _agent.call_async(worker, function, args, None, math.inf)


def _failure(value: Callable[[], object]) -> BaseException | None:
    try:
        value()
    except BaseException as error:  # noqa: BLE001, it is passed on
        return error
    return None


# Messages
# --------------------------------------------------------------------------------------------------


class Sent:
    """Edges where the gradients of a message continue, on its sender."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.edges = [_edge(tensor) for tensor in tensors]

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        return tuple((edge.node, edge.output_nr) for edge in self.edges)


class Received:
    """Message, on the worker that received it."""

    def __init__(self, number: int, tensors: list[torch.Tensor]) -> None:
        self.number = number
        self.tensors: list[torch.Tensor] = tensors
        self.count = len(tensors)

    @property
    def sender(self) -> int:
        return self.number >> _BITS


def _forward(node: Any, _: torch.Tensor, received: Received) -> tuple[torch.Tensor, ...]:
    node.rdzv_received = received
    tensors, received.tensors = received.tensors, []
    return tuple(tensor.detach() for tensor in tensors)


def _backward(*_: Any) -> Any:
    raise RuntimeError(
        "the gradient of a tensor that arrived by RPC reaches its sender only through "
        "torch.distributed.autograd.backward(context_id, roots)"
    )


# Name of torch's own node.
_Recv: Any = type(
    "torch::distributed::autograd::RecvRpc",
    (torch.autograd.Function,),
    {"forward": staticmethod(_forward), "backward": staticmethod(_backward)},
)


class Context:
    """Part of a context on one worker, with methods of ``DistAutogradContext``."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()
        self.sent: dict[int, Sent] = {}
        self.received: dict[int, Any] = {}
        # Workers to which this worker has sent messages.
        self.workers: set[int] = set()
        self.gradients: dict[torch.Tensor, torch.Tensor] = {}
        # Backward passes of `_backward`, by number.
        self.passes: dict[int, Any] = {}

    def _context_id(self) -> int:
        return self.number

    def _send_functions(self) -> dict[int, Sent]:
        with self.lock:
            return dict(self.sent)

    def _recv_functions(self) -> dict[int, Any]:
        with self.lock:
            return dict(self.received)

    def _known_worker_ids(self) -> set[int]:
        with self.lock:
            return set(self.workers)

    def send(self, worker: int, tensors: list[Any]) -> Mark:
        """Records tensors before they are sent.

        The mark names the context even without tensors, since the answer may have some.
        """
        which: list[int] = []
        if torch.is_grad_enabled():
            which = [index for index, tensor in enumerate(tensors) if tensor.requires_grad]
        number = _next_number() if which else 0
        with self.lock:
            self.workers.add(worker)
            if which:
                self.sent[number] = Sent(tensors[index] for index in which)
        return self.number, number, which

    def reply(self, worker: int, tensors: list[Any]) -> Mark | None:
        """Records tensors of an answer, unless the context has ended."""
        return self.send(worker, tensors) if _contexts.get(self.number) is self else None

    def receive(self, number: int, which: list[int], tensors: list[Any]) -> list[Any]:
        """Returns the tensors of a message.

        Gradients of those that need them are carried to the sender.
        """
        received = Received(number, [tensors[index] for index in which])
        with torch.enable_grad():
            attached = _Recv.apply(torch.empty(0, requires_grad=True), received)
        with self.lock:
            self.received[number] = attached[0].grad_fn
        tensors = list(tensors)
        for index, tensor in zip(which, attached):
            tensors[index] = tensor
        return tensors

    def add(self, found: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        with self.lock:
            for leaf, gradient in found:
                before = self.gradients.get(leaf)
                if before is None:
                    self.gradients[leaf] = gradient
                elif before.layout is not torch.strided and gradient.layout is torch.strided:
                    self.gradients[leaf] = gradient + before
                else:
                    self.gradients[leaf] = before + gradient


def received(mark: Mark | None, tensors: list[Any]) -> list[Any]:
    """Returns the tensors of a message, with the mark that came with it."""
    if mark is None or not mark[1]:
        return tensors
    context = joined(mark)
    return tensors if context is None else context.receive(mark[1], mark[2], tensors)


def joined(mark: Mark | None) -> Context | None:
    """Returns the context of a message; None if it has ended."""
    if mark is None:
        return None
    number = mark[0]
    with _lock:
        if number in _ended:
            return None
        context = _contexts.get(number)
        if context is None:
            context = _contexts[number] = Context(number)
        return context


class inside:  # noqa: N801, as torch's context managers
    """Context manager that enters the context of a call, or none."""

    def __init__(self, context: Context | None) -> None:
        self.context = context

    def __enter__(self) -> None:
        self.before, _local.context = current(), self.context

    def __exit__(self, *_: object) -> None:
        _local.context = self.before


# Contexts, with the names and the texts of torch
# ----------------------------------------------------------------------


def current() -> Context | None:
    """Returns the context of this thread."""
    return getattr(_local, "context", None)


def _current_context() -> Context:
    context = current()
    if context is None:
        raise RuntimeError(
            "Current thread doesn't have a valid autograd context. Please wrap your code using: "
            "`with torch.distributed.autograd.context() as context_id` to generate a valid context"
        )
    return context


def _new_context() -> Context:
    if current() is not None:
        raise RuntimeError("Already have an autograd context id for this thread")
    context = Context(_next_number())
    with _lock:
        _contexts[context.number] = context
    _local.context = context
    return context


def _retrieve_context(context_id: int) -> Context:
    context = _contexts.get(context_id)
    if context is None:
        raise RuntimeError(f"Could not find autograd context with id: {context_id}")
    return context


def _is_valid_context(context_id: int) -> None:
    _retrieve_context(context_id)


def _release_context(context_id: int) -> None:
    context = _retrieve_context(context_id)
    if current() is context:
        _local.context = None
    _end(context_id)


def _end(context_id: int) -> None:
    with _lock:
        context = _contexts.pop(context_id, None)
        _ended[context_id] = None
        while len(_ended) > _REMEMBERED:
            _ended.popitem(last=False)
    if context is None:
        return
    for worker in context._known_worker_ids():
        try:
            # No code waits for this call, and a failure does no harm.
            _call(worker, _end_here, context_id).add_done_callback(lambda done: _failure(done.value))
        except RuntimeError:
            # The worker has ended, and so has its context.
            pass


@_functions.function(name="rdzv.torch.autograd.end")
def _end_here(context_id: int) -> None:
    _end(context_id)


def _get_max_id() -> int:
    return _me() << _BITS | (1 << _BITS) - 1


def get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    context = _retrieve_context(context_id)
    with context.lock:
        return dict(context.gradients)
