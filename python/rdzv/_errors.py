"""The exceptions of rdzv. Users find them in ``rdzv``."""


class Error(RuntimeError):
    """Base of all errors of rdzv that are no wrong arguments."""


class StoreError(Error):
    """A store could not be reached, or refused or broke off an operation."""


class StoreTimeout(StoreError, TimeoutError):
    """Keys, or members of a barrier, did not come in time."""


class QueueEmpty(StoreError):
    """A queue was empty, and the caller did not want to wait."""


for _class in (Error, StoreError, StoreTimeout, QueueEmpty):
    _class.__module__ = "rdzv"


class CollectiveError(Error):
    """An operation of a process group failed, or the group could not be made.

    Attributes:
        rank (int | None): the own rank.
        peer (int | None): the rank at fault, as far as it is known.
        peers (tuple[int, ...]): all ranks that were waited for in vain, where more than one is known.
        operation (str | None): the call, e.g. ``"all_reduce"``.
        cause (str | None): ``mismatch``, ``timeout``, ``lost``, ``refused``, ``interrupted``, ``broken``, ``store``,
            ``system``, ``object`` or ``other``.
        elapsed (float | None): seconds since the operation began, where that is known.
    """

    def __init__(
        self,
        text: str = "",
        *,
        rank: int | None = None,
        peer: int | None = None,
        peers: tuple[int, ...] = (),
        operation: str | None = None,
        cause: str | None = None,
        elapsed: float | None = None,
    ) -> None:
        super().__init__(text)
        self.rank = rank
        self.peer = peer
        self.peers = peers
        self.operation = operation
        self.cause = cause
        self.elapsed = elapsed


class CollectiveTimeout(CollectiveError, TimeoutError):
    """A rank did not do its part of an operation in time. The group is broken."""


class RankLost(CollectiveError, ConnectionError):
    """The process of a rank ended, or left the group, while an operation waited for it. The group is broken."""


for _of_group in (CollectiveError, CollectiveTimeout, RankLost):
    _of_group.__module__ = "rdzv"
