"""Handlers: the interface between an agent and a rendezvous."""

from abc import ABC, abstractmethod

from rdzv.rendezvous._parameters import RendezvousParameters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from rdzv._rdzv import Rendezvous


class RendezvousStoreInfo:
    """Endpoint of the store through which the workers of a round meet.

    Args:
        master_addr (str): host of the workers' store.
        master_port (int): port of the workers' store.

    Example:
        >>> from rdzv.rendezvous import RendezvousStoreInfo
        >>> RendezvousStoreInfo("127.0.0.1", 29500).master_port
        29500
    """

    MASTER_ADDR_KEY = "MASTER_ADDR"
    MASTER_PORT_KEY = "MASTER_PORT"

    def __init__(self, master_addr: str, master_port: int):
        self.master_addr, self.master_port = master_addr, master_port

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RendezvousStoreInfo):
            return NotImplemented
        return (self.master_addr, self.master_port) == (other.master_addr, other.master_port)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RendezvousStoreInfo(master_addr={self.master_addr!r}, master_port={self.master_port})"


class RendezvousInfo:
    """Result of a round.

    Args:
        store (Store): the store that the agents of the round share.
        rank (int): rank of this agent, from 0.
        world_size (int): number of agents.
        bootstrap_store_info (RendezvousStoreInfo): endpoint of the workers' store.

    Example:
        >>> from rdzv.rendezvous import RendezvousInfo, RendezvousStoreInfo
        >>> RendezvousInfo(None, 0, 1, RendezvousStoreInfo("127.0.0.1", 29500)).world_size
        1
    """

    def __init__(self, store: object, rank: int, world_size: int, bootstrap_store_info: RendezvousStoreInfo):
        self._store, self._rank, self._world_size = store, rank, world_size
        self._bootstrap_store_info = bootstrap_store_info

    def __iter__(self) -> "Iterator[Any]":
        """Yields the store, the rank and the number of agents."""
        return iter((self._store, self._rank, self._world_size))

    @property
    def store(self) -> "Any":
        """Store: store that the agents of the round share."""
        return self._store

    @property
    def rank(self) -> int:
        """int: rank of this agent, from 0."""
        return self._rank

    @property
    def world_size(self) -> int:
        """int: number of agents."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo:
        """RendezvousStoreInfo: endpoint of the workers' store."""
        return self._bootstrap_store_info


class RendezvousHandler(ABC):
    """Base class of handlers, through which agents find one another.

    Example:
        >>> from rdzv.rendezvous import RendezvousHandler
        >>> RendezvousHandler.__abstractmethods__ >= {"next_rendezvous", "set_closed"}
        True
    """

    @abstractmethod
    def get_backend(self) -> str:
        """Returns the name of the backend.

        Returns:
            str: the name.
        """

    @property
    def use_agent_store(self) -> bool:
        """bool: True if workers may use the store at ``bootstrap_store_info``.

        False in this class.
        """
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Waits until the next round is complete.

        Returns:
            RendezvousInfo: the round.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Returns True if the rendezvous is closed; then no node can join.

        Returns:
            bool: True after :meth:`set_closed`.
        """

    @abstractmethod
    def set_closed(self) -> None:
        """Closes the rendezvous for all nodes."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """Returns the number of nodes that wait for the next round.

        Returns:
            int: the number.
        """

    @abstractmethod
    def get_run_id(self) -> str:
        """Returns the run id of the job.

        Returns:
            str: the run id.
        """

    @abstractmethod
    def shutdown(self) -> bool:
        """Closes the handler and frees its resources.

        Returns:
            bool: True on success.
        """


class NativeRendezvousHandler(RendezvousHandler):
    """Handler of a backend of rdzv.

    A native agent uses only the parameters of the handler. Without an agent, the methods of the
    handler perform the rendezvous.

    Args:
        params (RendezvousParameters): backend, endpoint and numbers of nodes.

    Raises:
        ValueError: the run id is empty. A static rendezvous needs none.

    Example:
        >>> from rdzv.rendezvous import NativeRendezvousHandler, RendezvousParameters
        >>> NativeRendezvousHandler(RendezvousParameters("static", "head:29500", "job", 2, 2, rank=0)).get_backend()
        'static'
    """

    def __init__(self, params: RendezvousParameters):
        if not params.run_id and params.backend != "static":
            raise ValueError("the run id is empty: all nodes of a job need the same run id")
        self.params = params
        self._native: "Rendezvous | None" = None

    def _joined(self) -> "Rendezvous":
        """The native rendezvous, which the first call makes."""
        if self._native is None:
            from rdzv import _secret
            from rdzv._rdzv import Rendezvous

            params = self.params
            self._native = Rendezvous(
                params.backend,
                params.endpoint,
                params.run_id,
                params.min_nodes,
                params.max_nodes,
                params.local_addr,
                {key: str(value) for key, value in params.config.items() if value is not None},
                token=_secret.token(),
                tls=_secret.tls(),
            )
        return self._native

    def get_backend(self) -> str:
        """Returns the backend: ``"c10d"``, ``"static"``, ``"etcd"`` or ``"etcd-v2"``.

        Returns:
            str: the name.

        Example:
            >>> from rdzv.rendezvous import NativeRendezvousHandler, RendezvousParameters
            >>> NativeRendezvousHandler(RendezvousParameters("c10d", "", "job", 1, 1)).get_backend()
            'c10d'
        """
        return self.params.backend

    def get_run_id(self) -> str:
        """Returns the run id of the job.

        Returns:
            str: the run id.

        Example:
            >>> from rdzv.rendezvous import NativeRendezvousHandler, RendezvousParameters
            >>> NativeRendezvousHandler(RendezvousParameters("c10d", "", "job", 1, 1)).get_run_id()
            'job'
        """
        return self.params.run_id

    @property
    def use_agent_store(self) -> bool:
        """bool: True, because workers use the store that an agent hosts."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Joins the next round.

        Returns:
            RendezvousInfo: the round.

        Raises:
            RendezvousError: the round did not form; the subclass shows the reason.
        """
        native = self._joined()
        _, rank, world_size, host, port = native.join()
        return RendezvousInfo(native.store(), rank, world_size, RendezvousStoreInfo(host, port))

    def is_closed(self) -> bool:
        """Returns True if no node can join any more.

        Returns:
            bool: True after any node has called :meth:`set_closed`. Always False with ``static``.
        """
        return self._joined().is_closed()

    def set_closed(self) -> None:
        """Closes the rendezvous for all nodes; does nothing with ``static``."""
        self._joined().set_closed()

    def num_nodes_waiting(self) -> int:
        """Returns 1 if the round of this node has ended.

        A round ends because nodes wait, have left or are lost.

        Returns:
            int: 0 or 1.
        """
        return 0 if self._native is None else self._native.num_nodes_waiting()

    def shutdown(self) -> bool:
        """Closes the rendezvous for all nodes, and frees its resources.

        It closes only a rendezvous that this handler has used, and no ``static`` one.

        Returns:
            bool: True if that succeeded.
        """
        native, self._native = self._native, None
        return True if native is None else native.shutdown()


for _public in (RendezvousStoreInfo, RendezvousInfo, RendezvousHandler, NativeRendezvousHandler):
    _public.__module__ = "rdzv.rendezvous"
