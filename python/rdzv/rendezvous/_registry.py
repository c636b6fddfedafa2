"""Registry of rendezvous backends."""

from collections.abc import Callable

from rdzv.rendezvous._handler import NativeRendezvousHandler, RendezvousHandler
from rdzv.rendezvous._parameters import RendezvousParameters

RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]


class RendezvousHandlerRegistry:
    """Registry of the creators of handlers, by name of the backend.

    Example:
        >>> from rdzv.rendezvous import RendezvousHandlerRegistry
        >>> RendezvousHandlerRegistry().register("own", lambda parameters: None)
    """

    def __init__(self) -> None:
        self._creators: "dict[str, RendezvousHandlerCreator]" = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Adds a backend.

        Args:
            backend (str): name of the backend.
            creator (Callable[[RendezvousParameters], RendezvousHandler]): function that creates a
            handler.

        Raises:
            ValueError: the name is empty, or is registered with another creator.

        Example:
            >>> from rdzv.rendezvous import NativeRendezvousHandler, rendezvous_handler_registry
            >>> rendezvous_handler_registry.register("example", NativeRendezvousHandler)
        """
        if not backend:
            raise ValueError("the name of the rendezvous backend is empty")
        if self._creators.setdefault(backend, creator) != creator:
            raise ValueError(f"the rendezvous backend {backend!r} has another creator already")

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Creates a handler.

        Args:
            params (RendezvousParameters): the backend and its parameters.

        Returns:
            RendezvousHandler: the new handler.

        Raises:
            ValueError: no backend with this name is registered.
            RuntimeError: the creator returned a handler of another backend.

        Example:
            >>> from rdzv.rendezvous import RendezvousParameters, rendezvous_handler_registry
            >>> params = RendezvousParameters("c10d", "", "job", 1, 1)
            >>> rendezvous_handler_registry.create_handler(params).get_backend()
            'c10d'
        """
        creator = self._creators.get(params.backend)
        if creator is None:
            known = ", ".join(sorted(self._creators))
            raise ValueError(f"the rendezvous backend {params.backend!r} is not registered; the backends are {known}")
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"the handler of the rendezvous backend {params.backend!r} reports the name {handler.get_backend()!r}"
            )
        return handler


rendezvous_handler_registry = RendezvousHandlerRegistry()
for _name in ("c10d", "static", "etcd", "etcd-v2"):
    rendezvous_handler_registry.register(_name, NativeRendezvousHandler)


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Creates the handler of a rendezvous.

    Args:
        params (RendezvousParameters): the backend and its parameters.

    Returns:
        RendezvousHandler: the new handler, for :class:`rdzv.elastic.WorkerSpec`.

    Raises:
        ValueError: the backend is not registered.

    Example:
        >>> from rdzv.rendezvous import RendezvousParameters, get_rendezvous_handler
        >>> get_rendezvous_handler(RendezvousParameters("c10d", "", "job", 1, 1)).get_run_id()
        'job'
    """
    return rendezvous_handler_registry.create_handler(params)


for _public in (RendezvousHandlerRegistry, get_rendezvous_handler):
    _public.__module__ = "rdzv.rendezvous"
