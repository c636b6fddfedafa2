"""URLs at which workers meet.

The schemes are ``env://``, ``tcp://``, ``file://``, ``rdzv://``, and those of your own handlers.
"""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

from rdzv._rdzv import Store, url_rendezvous

# Values of a registered handler: a store, the rank, the number of workers.
Met = tuple[Store, int, int]

_BUILT_IN = ("env", "file", "rdzv", "tcp")
_handlers: "dict[str, Callable[..., Iterator[Met]]]" = {}


def register_rendezvous_handler(scheme: str, handler: "Callable[..., Iterator[Met]]") -> None:
    """Adds the handler of a scheme.

    Args:
        scheme (str): text before ``://``.
        handler (callable): ``handler(url, **kwargs)`` returns an iterator, as a generator does,
            that yields a store, the rank and the number of workers. If rank and number were given,
            they are in the query of the URL. The keywords are those of :func:`rendezvous`.

    Raises:
        RuntimeError: the scheme already has a handler.

    Example:
        >>> import rdzv
        >>> from rdzv.rendezvous import register_rendezvous_handler, rendezvous
        >>> def alone(url, **kwargs):
        ...     yield rdzv.HashStore(), 0, 1
        >>> register_rendezvous_handler("example", alone)
        >>> next(rendezvous("example://here"))[1:]
        (0, 1)
    """
    if scheme in _BUILT_IN or _handlers.setdefault(scheme, handler) is not handler:
        raise RuntimeError(f"Rendezvous handler for {scheme}:// already registered")


def rendezvous(
    url: str,
    rank: int = -1,
    world_size: int = -1,
    timeout: "float | timedelta | None" = None,
    *,
    token: "str | bytes | None" = None,
    tls: "dict[str, str | os.PathLike[str]] | None" = None,
    **kwargs: object,
) -> "Iterator[Met]":
    """Joins the rendezvous of a URL, when the first value is requested.

    | URL | the store | rank and number of workers |
    |---|---|---|
    | ``env://`` | TCP, at ``MASTER_ADDR`` and ``MASTER_PORT``; rank 0 hosts it, unless the agent does | arguments, query, ``RANK`` and ``WORLD_SIZE`` |
    | ``tcp://host:port`` | TCP, there; rank 0 hosts it | arguments or query |
    | ``file:///path`` | that file | arguments or query |
    | ``rdzv://host:port/job`` | TCP, at a worker | number: argument or query; the rank is assigned, unless it is specified |

    Args:
        url (str): the URL.
        rank (int): rank of this worker. Default -1: the URL or the environment specifies it, or it
            is assigned.
        world_size (int): number of workers. Default -1: the URL or the environment specifies it.
        timeout (float | timedelta | None): seconds for the whole rendezvous, and the timeout of the
            store. Default 30 minutes. Not used by ``file://``.
        token (str | bytes | None): the secret of the job, proven at a TCP store. Default: the
            secret from the environment, set by the launcher of a job with a token.
        tls (dict | None): PEM files ``certificate``, ``key`` and ``authorities``. Default: those of
            the environment.
        **kwargs (object): passed to a registered handler.

    Returns:
        Iterator[tuple[Store, int, int]]: yields store, rank and number of workers, once.

    Raises:
        TypeError: an argument has a wrong type, or a keyword is unknown.
        ValueError: a value is missing, given twice, or invalid.
        RuntimeError: no handler has the scheme, or a second value was requested.
        StoreError: the store cannot be reached or hosted.
        RendezvousError: for ``rdzv://``, some workers did not arrive in time, or the endpoint
            cannot be reached.

    Example:
        >>> from rdzv.rendezvous import rendezvous
        >>> store, rank, world_size = next(rendezvous("tcp://127.0.0.1:0", rank=0, world_size=1))
        >>> rank, world_size
        (0, 1)
    """
    if not isinstance(url, str):
        raise TypeError(f"`url` must be a string. {type(url)}: {url}")
    for name, number in (("rank", rank), ("world_size", world_size)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"`{name}` must be an integer. {number}")
        if number < -1:
            raise ValueError(f"{name} is {number}: give a number from 0, or -1 for none")
    scheme = urlsplit(url).scheme
    handler = _handlers.get(scheme)
    if handler is not None:
        if timeout is not None:
            kwargs["timeout"] = timeout
        for name, secret in (("token", token), ("tls", tls)):
            if secret is not None:
                kwargs[name] = secret
        return handler(_with_ranks(url, rank, world_size), **kwargs)
    if scheme not in _BUILT_IN:
        raise RuntimeError(f"No rendezvous handler for {scheme}://")
    if kwargs:
        raise TypeError(f"rendezvous() of {scheme}:// got an unexpected keyword argument {next(iter(kwargs))!r}")
    return _built_in(scheme, url, rank, world_size, timeout, token, tls)


def _built_in(scheme: str, url: str, rank: int, world_size: int, *options: object) -> "Iterator[Met]":
    yield url_rendezvous(url, None if rank == -1 else rank, None if world_size == -1 else world_size, *options)
    how = "rerendezvous" if scheme == "file" else "re-rendezvous"
    raise RuntimeError(f"Unable to perform {how} using {scheme}:// method")


def _with_ranks(url: str, rank: int, world_size: int) -> str:
    """Returns the URL with rank and world size in its query."""
    parts = urlsplit(url)
    given = {"rank": rank, "world_size": world_size}
    given = {name: number for name, number in given.items() if number != -1}
    words = [word for word in parts.query.split("&") if word]
    if given and any(word.partition("=")[0] in ("rank", "world_size") for word in words):
        raise ValueError(f"The url: {url} has node-specific arguments(rank, world_size) already.")
    query = "&".join([*words, *(f"{name}={number}" for name, number in given.items())])
    return urlunsplit(parts._replace(query=query))


for _public in (register_rendezvous_handler, rendezvous):
    _public.__module__ = "rdzv.rendezvous"
