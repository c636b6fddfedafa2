"""Backend that keeps the state of a rendezvous in a store."""

import binascii
import os
import socket
import tempfile
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from urllib.parse import urlsplit

from rdzv._errors import Error, RendezvousConnectionError, RendezvousError, RendezvousStateError
from rdzv._rdzv import FileStore, StoreServer, TCPStore
from rdzv.rendezvous._parameters import RendezvousParameters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    _T = TypeVar("_T")

# Port of the store if the endpoint has none.
DEFAULT_PORT = 29400

# PyTorch's texts. The cause has the details.
_LOST = "The connection to the C10d store has failed. See inner exception for details."
_CORRUPT = "The state object is corrupt. See inner exception for details."
_FAILURES = (Error, OSError, RuntimeError, ValueError)


class RendezvousBackend(ABC):
    """Base class of backends, which keep the state of a rendezvous.

    Example:
        >>> from rdzv.rendezvous import RendezvousBackend
        >>> sorted(RendezvousBackend.__abstractmethods__)
        ['get_state', 'name', 'set_state']
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """str: name of the backend."""

    @abstractmethod
    def get_state(self) -> "tuple[bytes, Any] | None":
        """Returns the state.

        Returns:
            tuple[bytes, Any] | None: the state and its token; None if there is no state.

        Raises:
            RendezvousConnectionError: the backend cannot be reached.
            RendezvousStateError: the state is corrupt.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: "Any" = None) -> "tuple[bytes, Any, bool] | None":
        """Replaces the state if ``token`` is the token of the present state.

        Args:
            state (bytes): the new state.
            token (Any): token of the present state; None if there must be no state.

        Returns:
            tuple[bytes, Any, bool] | None: the state after the call, its token, and True if it is the new state. None
            if there is no state.

        Raises:
            RendezvousConnectionError: the backend cannot be reached.
            RendezvousStateError: the state is corrupt.
        """


class C10dRendezvousBackend(RendezvousBackend):
    """Backend over a store.

    It uses the key and the format of PyTorch's class of the same name, so both can participate in one run.

    Args:
        store (Store): the store; a store of torch is possible.
        run_id (str): name of the job.

    Raises:
        ValueError: the run id is empty.
        RendezvousConnectionError: the store cannot be reached.

    Example:
        >>> import rdzv
        >>> from rdzv.rendezvous import C10dRendezvousBackend
        >>> backend = C10dRendezvousBackend(rdzv.HashStore(), "job")
        >>> backend.set_state(b"state")
        (b'state', b'c3RhdGU=', True)
        >>> backend.set_state(b"other")
        (b'state', b'c3RhdGU=', False)
    """

    # Value that means "no state". A read of a missing key would wait.
    _NULL_SENTINEL = "Y2FuaW1hZGFt"

    def __init__(self, store: "Any", run_id: str):
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        self._store, self._key = store, f"torch.rendezvous.{run_id}"
        # Server of the store, if this process hosts it.
        self._server: "StoreServer | None" = None
        _asked(lambda: store.compare_set(self._key, "", self._NULL_SENTINEL))

    @property
    def name(self) -> str:
        """str: ``"c10d"``."""
        return "c10d"

    def get_state(self) -> "tuple[bytes, bytes] | None":
        """Returns the state.

        Returns:
            tuple[bytes, bytes] | None: the state and its token; None if there is no state.

        Raises:
            RendezvousConnectionError: the store cannot be reached.
            RendezvousStateError: the state is corrupt.
        """
        return self._decoded(_asked(lambda: self._store.get(self._key)))

    def set_state(self, state: bytes, token: "Any" = None) -> "tuple[bytes, bytes, bool] | None":
        """Replaces the state if ``token`` is the token of the present state.

        Args:
            state (bytes): the new state.
            token (bytes | None): token of the present state; None if there must be no state. Any other value matches
                no state.

        Returns:
            tuple[bytes, bytes, bool] | None: the state after the call, its token, and True if it is the new state. None
            if there is no state.

        Raises:
            RendezvousConnectionError: the store cannot be reached.
            RendezvousStateError: the state is corrupt.
        """
        if token and not isinstance(token, bytes):
            present = self.get_state()
            return None if present is None else (*present, False)
        expected = token or self._NULL_SENTINEL
        found = self._decoded(_asked(lambda: self._store.compare_set(self._key, expected, b64encode(state))))
        return None if found is None else (*found, found[0] == state)

    def _decoded(self, value: bytes) -> "tuple[bytes, bytes] | None":
        if value == self._NULL_SENTINEL.encode():
            return None
        try:
            return b64decode(value), value
        except binascii.Error as error:
            raise RendezvousStateError(_CORRUPT) from error


def create_backend(params: RendezvousParameters) -> "tuple[C10dRendezvousBackend, TCPStore | FileStore]":
    """Creates a backend and its store.

    | option | default | meaning |
    |---|---|---|
    | ``store_type`` | ``tcp`` | ``tcp``, or ``file`` for the file at the endpoint |
    | ``is_host`` | if the endpoint is on this host | true: this process hosts the TCP store |
    | ``read_timeout`` | 60 | timeout of the TCP store, in seconds |

    Args:
        params (RendezvousParameters): the endpoint, the run id and these options.

    Returns:
        tuple[C10dRendezvousBackend, Store]: the backend and its store. If this process hosts the store, the backend
        keeps its server.

    Raises:
        ValueError: the endpoint or an option has an invalid value, or the run id is empty.
        RendezvousConnectionError: the store cannot be reached or hosted.
        RendezvousError: the temporary file cannot be created.

    Example:
        >>> from rdzv.rendezvous import RendezvousParameters, create_backend
        >>> backend, store = create_backend(RendezvousParameters("c10d", "", "job", 1, 1, store_type="file"))
        >>> backend.set_state(b"state")[2]
        True
    """
    kind = str(params.get("store_type", "tcp")).strip().lower()
    if kind == "file":
        store = _file_store(params.endpoint)
        return C10dRendezvousBackend(store, params.run_id), store
    if kind != "tcp":
        raise ValueError("Invalid store type given. Currently only supports file and tcp.")
    timeout = params.get_as_int("read_timeout", 60)
    if timeout is None or timeout <= 0:
        raise ValueError("The read timeout must be a positive integer.")
    try:
        endpoint = urlsplit(f"//{params.endpoint}")
        host, port = endpoint.hostname or "localhost", DEFAULT_PORT if endpoint.port is None else endpoint.port
    except ValueError as error:
        raise ValueError(f"the endpoint {params.endpoint!r} is not HOST[:PORT]: {error}") from None
    server = _server(host, port, params.get_as_bool("is_host"))
    client = _asked(lambda: TCPStore(host, port if server is None else server.port, timeout=float(timeout)))
    backend = C10dRendezvousBackend(client, params.run_id)
    backend._server = server
    return backend, client


def _server(host: str, port: int, is_host: "bool | None") -> "StoreServer | None":
    """Server of this process; None if another process hosts the store."""
    if is_host is False or is_host is None and not _is_of_this_host(host):
        return None
    dual = socket.has_dualstack_ipv6()
    try:
        with socket.create_server(("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual) as bound:
            return StoreServer(fd=os.dup(bound.fileno()))
    except _FAILURES as error:
        if is_host:
            raise RendezvousConnectionError(_LOST) from error
        # Another process of this host has the port.
        return None


def _is_of_this_host(host: str) -> bool:
    """True if a socket can be bound to an address of the host."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, _, _, address in addresses:
        try:
            with socket.socket(family, kind) as bound:
                bound.bind(address)
                return True
        except OSError:
            continue
    return False


def _file_store(path: str) -> FileStore:
    if not path:
        try:
            descriptor, path = tempfile.mkstemp()
            os.close(descriptor)
        except OSError as error:
            raise RendezvousError("The file creation for C10d store has failed. See inner exception for details.") from error
    return _asked(lambda: FileStore(path))


def _asked(call: "Callable[[], _T]") -> "_T":
    try:
        return call()
    except _FAILURES as error:
        raise RendezvousConnectionError(_LOST) from error


for _public in (RendezvousBackend, C10dRendezvousBackend, create_backend):
    _public.__module__ = "rdzv.rendezvous"
