"""Process groups of workers that recover in their processes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    import rdzv

_said: set[str] = set()


def _say(job: rdzv.Job, text: str) -> None:
    """Prints each way of recovery that a job uses once, at rank 0."""
    if job.rank == 0 and text not in _said:
        _said.add(text)
        print(f"rdzv: {text}", file=sys.stderr)


def _sockets() -> dict[int, str]:
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found[int(entry)] = target
    return found


def recorded(job: rdzv.Job, make: Callable[[], None]) -> None:
    """Calls a function, and records the TCP connections that it opens."""
    before = job._before = _sockets()
    try:
        make()
        while job._held:
            job._held.pop().close()
    finally:
        _record(job, before)
        job._before = None


def _record(job: rdzv.Job, known: dict[int, str]) -> None:
    """Records the connections that are not known."""
    store = int(os.environ["MASTER_PORT"])
    for descriptor, target in _sockets().items():
        if known.get(descriptor) == target:
            continue
        try:
            with socket.socket(fileno=os.dup(descriptor)) as handle:
                inet = handle.family in (socket.AF_INET, socket.AF_INET6)
                if inet and handle.type == socket.SOCK_STREAM:
                    job._sockets[descriptor, target] = handle.getpeername()[1] == store
        except OSError:
            # It listens, or has been closed.
            continue


def abort(job: rdzv.Job) -> None:
    """Ends the collectives of this process that are in flight.

    The function shuts down the connections that ``Job.init_process_group`` and ``Job.regroup``
    opened. The connections to a store stay open, unless the main thread is making a group. The
    function also aborts the default group, unless its backend is gloo, whose ``abort`` does
    nothing, or rdzv.

    Args:
        job (rdzv.Job): the job.

    Example:
        >>> import rdzv.torch
        >>> rdzv.torch.abort(rdzv.Job())
    """
    before = job._before
    if before is not None:
        # The main thread is connecting, and can be waiting for a member in the store.
        _record(job, before)
        job._is_cut = True
    now = _sockets() if job._sockets else {}
    for (descriptor, target), is_store in list(job._sockets.items()):
        is_open = now.get(descriptor) == target
        if is_open and is_store and not job._is_cut:
            continue
        job._sockets.pop((descriptor, target), None)
        if not is_open:
            continue
        try:
            handle = socket.socket(fileno=os.dup(descriptor))
            handle.shutdown(socket.SHUT_RDWR if is_store else socket.SHUT_RD)
        except OSError:
            continue
        # After a failed write, gloo's thread loops and never ends the collective. So this end stops
        # reading, but both ends can still send until the next group is there.
        job._held.append(handle)
    if dist.is_available() and dist.is_initialized() and dist.get_backend() not in ("gloo", "rdzv"):
        dist.distributed_c10d._abort_process_group()


def leave(job: rdzv.Job) -> None:
    """Destroys the default group, unless the next round reconfigures it."""
    if job._is_cut:
        # The connection to the group's store is shut down.
        job._group, job._before, job._is_cut = None, None, False
    if job._group is None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def init_process_group(job: rdzv.Job, backend: str, options: dict[str, Any]) -> None:
    if job._control is None:
        dist.init_process_group(backend, **options)
    else:
        recorded(job, lambda: _connect(job, backend, options))


def _connect(job: rdzv.Job, backend: str, options: dict[str, Any]) -> None:
    handle, why = _handle(job, backend, options)
    handles = job.exchange("handle", handle)
    if all(handles):
        group, job._group = job._group, None
        timeout = options.get("timeout", timedelta(seconds=10))
        dist._reconfigure(uuid=job.round, handles=handles, timeout=min(timeout, timedelta(seconds=10))).wait()
        job._group = group
        _say(job, f"process groups of {backend} are reconfigured in place after a recovery")
        return
    _say(job, f"process groups are made again after a recovery: {why or 'a member has another store'}")
    job._group = None
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(backend, **options)


def _handle(job: rdzv.Job, backend: str, options: dict[str, Any]) -> tuple[str, str]:
    """Returns the handle for a reconfiguration, or an empty text and the reason."""
    endpoint = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    # A backend in Python cannot change its rank and size.
    place = "" if backend == "gloo" else f" {job.rank} {job.world_size}"
    if job._group is not None:
        # The group's store belongs to the agent with rank 0, which may be another one now.
        same = job._group == (backend, endpoint + place)
        return (dist._get_reconfigure_handle(), "") if same else ("", "")
    if not hasattr(dist, "_reconfigure"):
        return "", f"torch {torch.__version__} cannot reconfigure groups"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return "", "rank 0 hosts the store"
    if "store" in options or "init_method" in options:
        return "", "the script selects the store of the group"
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), wait_for_workers=False)
    dist.init_process_group(
        backend, store=store, rank=job.rank, world_size=job.world_size, enable_reconfigure=True, **options
    )
    if not dist._supports_reconfigure():
        return "", f"{backend} cannot be reconfigured"
    job._group = (backend, endpoint + place)
    return dist._get_reconfigure_handle(), ""


def broadcast_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, job: rdzv.Job) -> int | None:
    """Sends the newest state in memory to all workers after a recovery.

    The source is the kept rank with the most finished steps (``job.step``). All workers must call the function.

    Args:
        model (torch.nn.Module): the model.
        optimizer (torch.optim.Optimizer | None): the optimizer of the model.
        job (rdzv.Job): the job.

    Returns:
        int | None: number of finished steps of the state; None if no process was kept.

    Example:
        >>> import torch, rdzv.torch
        >>> rdzv.torch.broadcast_state(torch.nn.Linear(2, 2), None, rdzv.Job())
    """
    if not job.kept:
        return None
    if job._source is None or job._source[0] != job.round:
        # The decision holds for every call in the round.
        steps = [int(step) for step in job.exchange("step", str(job._step))]
        source = max(job.kept, key=lambda rank: steps[rank])
        job._source = (job.round, source, steps[source], len(set(steps)) > 1 or bool(job.replaced))
    _, source, step, is_needed = job._source
    if is_needed:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, source)
        if optimizer is not None:
            states = [optimizer.state_dict()]
            dist.broadcast_object_list(states, source)
            if job.rank != source:
                optimizer.load_state_dict(states[0])
    job.step(step)
    return step
