"""Backward passes of distributed autograd, through the messages of contexts.

A pass follows the messages in reverse, twice. First the worker with the roots asks other workers
for the messages that the roots depend on, in order. Then the gradients of these messages go from
worker to worker. The gradients of messages of the caller are the answer. A worker computes the
gradient of a message once, when all gradients that it depends on have arrived. So each operation
gets its whole gradient. The pass does not wait for messages that the roots do not depend on.

torch's own engine runs between two messages (`torch.autograd.grad`). Two tensors can share
operations while one depends on the other through another worker. Then the engine runs through these
operations again.
"""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge

from rdzv.rpc import _functions
from rdzv.rpc._future import Future
from rdzv.torch import _autograd
from rdzv.torch._autograd import Context, Received

if TYPE_CHECKING:
    from collections.abc import Iterable

# Gradients of the tensors of a message, with None for a tensor that the roots do not depend on; and
# gradients of messages, by number.
Gradients = list["torch.Tensor | None"]
Delivery = list[tuple[int, Gradients]]

_lock = threading.Lock()
_passes = 0


class Source:
    """Tensors at which gradients of a pass start.

    They are the roots, or the tensors of a message that this worker sent.
    """

    def __init__(self, edges: list[GradientEdge]) -> None:
        self.edges = edges
        self.gradients: list[torch.Tensor | None] | None = None
        # Nodes from which these tensors were computed, by kind.
        self.operations: set[Any] = set()
        self.leaves: set[Any] = set()
        self.messages: set[Any] = set()
        found, ahead = set(), [edge.node for edge in edges]
        while ahead:
            node = ahead.pop()
            if node in found:
                continue
            found.add(node)
            if getattr(node, "rdzv_received", None) is not None:
                self.messages.add(node)
                continue
            if type(node) is _autograd._LEAF:
                self.leaves.add(node)
                # A hook needs the whole gradient, like an operation.
                if node.variable._backward_hooks:
                    self.operations.add(node)
                continue
            self.operations.add(node)
            ahead += [following for following, _ in node.next_functions if following is not None]


class Part:
    """Sources whose operations overlap, so their gradients must be summed."""

    def __init__(self, sources: list[Source]) -> None:
        self.sources = sources
        self.is_running = False
        # Messages and leaves without a computed gradient, with the sources of each.
        self.messages: dict[Any, list[Source]] = {}
        self.leaves: dict[Any, list[Source]] = {}
        for source in sources:
            for node in source.messages:
                self.messages.setdefault(node, []).append(source)
            for node in source.leaves:
                self.leaves.setdefault(node, []).append(source)

    def take(self) -> tuple[list[Any], list[Any]] | None:
        """Takes messages and leaves whose gradients can be computed now."""
        messages, leaves = _ready(self.messages), _ready(self.leaves)
        if not messages and not (self.is_whole and leaves):
            return None
        for node in messages:
            del self.messages[node]
        for node in leaves:
            del self.leaves[node]
        return messages, leaves

    @property
    def is_whole(self) -> bool:
        return all(source.gradients is not None for source in self.sources)

    @property
    def is_done(self) -> bool:
        return self.is_whole and not self.messages and not self.leaves


def _ready(wanted: dict[Any, list[Source]]) -> list[Any]:
    return [node for node, sources in wanted.items() if all(one.gradients is not None for one in sources)]


class Pass:
    """Part of one call of ``backward`` on one worker."""

    def __init__(self, context: Context, number: int, retain_graph: bool) -> None:
        self.context = context
        self.number = number
        self.retain_graph = retain_graph
        self.lock = threading.Lock()
        self.sources: dict[int, Source] = {}
        self.found: set[int] = set()
        self.parts: list[Part] | None = None
        # Addresses of memory that has gradients of leaves: each leaf needs separate memory.
        self.used: set[int] = set()

    def explore(self, sources: dict[int, list[GradientEdge]]) -> dict[int, list[int]]:
        """Adds sources, and returns the messages that they depend on.

        The messages are grouped by the workers that sent them.
        """
        ahead: dict[int, list[int]] = {}
        for number, edges in sources.items():
            source = Source(edges)
            with self.lock:
                self.sources[number] = source
                for node in source.messages:
                    message = node.rdzv_received
                    if message.number not in self.found:
                        self.found.add(message.number)
                        ahead.setdefault(message.sender, []).append(message.number)
        return ahead

    def sent(self, messages: list[int]) -> dict[int, list[GradientEdge]]:
        """Returns messages of this worker as sources."""
        with self.context.lock:
            return {message: self.context.sent[message].edges for message in messages}

    def deliver(self, number: int, gradients: Gradients) -> list[tuple[Received, Gradients]]:
        """Takes the gradients of a source.

        Then it computes the gradients of messages that waited only for this source.
        """
        source = self.sources[number]
        with self.lock:
            if self.parts is None:
                self.parts = _parts(list(self.sources.values()))
            source.gradients = gradients
            part = next(part for part in self.parts if source in part.sources)
        found = []
        while True:
            with self.lock:
                # The thread that runs the part takes what has arrived in the meantime.
                taken = None if part.is_running else part.take()
                if taken is None:
                    break
                part.is_running = True
                is_last = part.is_done
            try:
                found += self._compute(part, *taken, is_last)
            finally:
                with self.lock:
                    part.is_running = False
        with self.lock:
            if all(part.is_done for part in self.parts or []):
                self.context.passes.pop(self.number, None)
        return found

    def _compute(
        self, part: Part, messages: list[Any], leaves: list[Any], is_last: bool
    ) -> list[tuple[Received, Gradients]]:
        begins = [
            (edge, gradient)
            for source in part.sources
            for edge, gradient in zip(source.edges, source.gradients or ())
            if gradient is not None
        ]
        ends = [GradientEdge(node, index) for node in messages for index in range(node.rdzv_received.count)]
        ends += [GradientEdge(node, 0) for node in leaves]
        found: tuple[torch.Tensor | None, ...] = (None,) * len(ends)
        if begins:
            edges, gradients = zip(*begins)
            keeps = self.retain_graph or not is_last
            found = torch.autograd.grad(edges, ends, gradients, retain_graph=keeps, allow_unused=True)
        at = 0
        of_messages = []
        for node in messages:
            message: Received = node.rdzv_received
            of_messages.append((message, list(found[at : at + message.count])))
            at += message.count
        self.context.add(self._apart([(node.variable, one) for node, one in zip(leaves, found[at:]) if one is not None]))
        return of_messages

    def _apart(self, found: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns the gradients of leaves, each in separate memory."""
        addresses = [_address(gradient) for _, gradient in found]
        times = collections.Counter(addresses)
        with self.lock:
            shared = {address for address in times if times[address] > 1 or address in self.used}
            self.used.update(addresses)
        return [
            (leaf, gradient.clone() if address in shared or _is_expanded(gradient) else gradient)
            for (leaf, gradient), address in zip(found, addresses)
        ]


def _address(gradient: torch.Tensor) -> int:
    if gradient.layout is torch.sparse_coo:
        gradient = gradient._values()
    elif gradient.layout is not torch.strided:
        gradient = gradient.values()
    return gradient.untyped_storage().data_ptr()


def _is_expanded(gradient: torch.Tensor) -> bool:
    return gradient.layout is torch.strided and 0 in gradient.stride()


def _parts(sources: list[Source]) -> list[Part]:
    """Groups the sources by common nodes."""
    groups: list[tuple[set[Any], list[Source]]] = []
    for source in sources:
        nodes, members = source.operations | source.messages, [source]
        apart = []
        for other in groups:
            if other[0].isdisjoint(nodes):
                apart.append(other)
            else:
                nodes |= other[0]
                members += other[1]
        groups = [*apart, (nodes, members)]
    return [Part(members) for _, members in groups]


@_functions.function(name="rdzv.torch.autograd.explore")
def _explore(context_id: int, number: int, retain_graph: bool, messages: list[int]) -> dict[int, list[int]]:
    context = _autograd._retrieve_context(context_id)
    with context.lock:
        at = context.passes.get(number)
        if at is None:
            at = context.passes[number] = Pass(context, number, retain_graph)
    return at.explore(at.sent(messages))


def _explored(at: Pass, ahead: dict[int, list[int]]) -> None:
    """Finds all messages that a pass needs, on all workers."""
    me = _autograd._me()
    while ahead:
        found = []
        own = ahead.pop(me, None)
        calls = [
            _autograd._call(worker, _explore, at.context.number, at.number, at.retain_graph, messages)
            for worker, messages in ahead.items()
        ]
        if own is not None:
            found.append(at.explore(at.sent(own)))
        found += [call.wait() for call in calls]
        ahead = {}
        for one in found:
            for worker, messages in one.items():
                ahead.setdefault(worker, []).extend(messages)


class _Carrier:
    """Carrier of gradients, from a worker until no work is left."""

    def __init__(self, at: Pass, caller: int) -> None:
        self.at = at
        self.caller = caller
        # Gradients of messages of the caller.
        self.answer: Delivery = []
        self.end: Future[Delivery] = Future()
        self.lock = threading.Lock()
        self.calls = 0

    def carry(self, ready: Delivery) -> list[Future[Delivery]]:
        """Computes gradients here, and calls the workers that continue."""
        me, ahead = _autograd._me(), list(ready)
        elsewhere: dict[int, Delivery] = {}
        while ahead:
            source, gradients = ahead.pop()
            try:
                found = self.at.deliver(source, gradients)
            except Exception as error:
                if source == _ROOTS:
                    raise
                raise RuntimeError(f"Error on Node {me}: {error}") from error
            for message, own in found:
                if message.sender == me:
                    ahead.append((message.number, own))
                elif message.sender == self.caller:
                    self.answer.append((message.number, own))
                else:
                    elsewhere.setdefault(message.sender, []).append((message.number, own))
        number = self.at.context.number
        return [_autograd._call(to, _deliver, number, self.at.number, me, own) for to, own in elsewhere.items()]

    def start(self, ready: Delivery) -> Future[Delivery]:
        """Carries gradients to the end, without a waiting thread."""
        calls = self.carry(ready)
        self.calls = len(calls)
        if not calls:
            self.end.set_result(self.answer)
        for call in calls:
            call.add_done_callback(self._go_on)
        return self.end

    def _go_on(self, done: Future[Delivery]) -> None:
        try:
            calls = self.carry(done.value())
        except BaseException as error:  # noqa: BLE001, it is the result
            self.end._finish(None, error)
            return
        with self.lock:
            self.calls += len(calls) - 1
            is_over = not self.calls
        if is_over:
            self.end._finish(self.answer, None)
        for call in calls:
            call.add_done_callback(self._go_on)


@_functions.function(name="rdzv.torch.autograd.deliver")
def _deliver(context_id: int, number: int, caller: int, ready: Delivery) -> Future[Delivery]:
    context = _autograd._retrieve_context(context_id)
    return _Carrier(context.passes[number], caller).start(ready)


_deliver._rdzv_async_execution = True  # type: ignore[attr-defined]

# Number of the roots instead of a message, and number of the caller if there is none.
_ROOTS = 0
_NOBODY = -1


def backward(context_id: int, roots: list[torch.Tensor], retain_graph: bool = False) -> None:
    if not isinstance(context_id, int) or not isinstance(roots, (list, tuple)):
        raise TypeError(
            "backward(): incompatible function arguments. The following argument types are supported: "
            "(context_id: int, roots: list[torch.Tensor], retain_graph: bool = False)"
        )
    context = _autograd._retrieve_context(context_id)
    _check_roots(roots)
    global _passes
    with _lock:
        _passes += 1
    number = _autograd._next_number()
    try:
        at = Pass(context, number, retain_graph)
        with context.lock:
            context.passes[number] = at
        _explored(at, at.explore({_ROOTS: [_autograd._edge(root) for root in roots]}))
        carrier = _Carrier(at, _NOBODY)
        calls = carrier.carry([(_ROOTS, [torch.ones_like(root) for root in roots])])
        while calls:
            calls += carrier.carry(calls.pop(0).wait())
    finally:
        context.passes.pop(number, None)
        with _lock:
            _passes -= 1


def _check_roots(roots: Iterable[torch.Tensor]) -> None:
    roots = list(roots)
    if not roots:
        raise RuntimeError("No tensors provided for gradient computation.")
    for root in roots:
        if not root.requires_grad:
            raise RuntimeError("requires_grad not set on root")
        if root.numel() != 1:
            raise RuntimeError(f"a root of shape {list(root.shape)} is not a scalar, all roots need to be scalar")
        if root.grad_fn is None:
            raise RuntimeError("a root does not have a valid gradient function.")


def _get_debug_info() -> dict[str, str]:
    return {
        "num_current_backward_passes": str(_passes),
        "num_autograd_contexts": str(len(_autograd._contexts)),
    }
