"""Rendezvous of workers by URL.

The schemes are ``env://``, ``tcp://``, ``file://``, ``rdzv://`` and those that users register.
"""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

from rdzv._rdzv import Store, url_rendezvous

# Result that a registered handler yields: a store, the rank, the number of workers.
Met = tuple[Store, int, int]

# PyTorch's text.
_TWICE = "The url: {} has node-specific arguments(rank, world_size) already."

_BUILT_IN = ("env", "file", "rdzv", "tcp")
_handlers: "dict[str, Callable[..., Iterator[Met]]]" = {}


def register_rendezvous_handler(scheme: str, handler: "Callable[..., Iterator[Met]]") -> None:
    """Registers the handler of a scheme.

    Args:
        scheme (str): the part of the URL before ``://``.
        handler (callable): ``handler(url, **kwargs)`` returns an iterator, as a generator does. The iterator yields a
            store, the rank and the number of workers. The query of the URL has the rank and the number that the caller
            specified. The keywords are those of :func:`rendezvous`.

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
    if scheme in _BUILT_IN or scheme in _handlers:
        raise RuntimeError(f"Rendezvous handler for {scheme}:// already registered")
    _handlers[scheme] = handler


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
    """Joins the rendezvous of a URL when the caller requests the first value.

    | URL | the store | rank and number of workers |
    |---|---|---|
    | ``env://`` | TCP, at ``MASTER_ADDR`` and ``MASTER_PORT``; hosted by rank 0 or by the agent | arguments, query, ``RANK`` and ``WORLD_SIZE`` |
    | ``tcp://host:port`` | TCP, at that endpoint; hosted by rank 0 or by the agent | arguments or query |
    | ``file:///path`` | the file | arguments or query |
    | ``rdzv://host:port/job`` | TCP, hosted by a worker | number: argument or query; rank: assigned unless specified |

    Args:
        url (str): the URL.
        rank (int): rank of this worker. -1, the default: from the URL, the environment or the rendezvous.
        world_size (int): number of workers. -1, the default: from the URL or the environment.
        timeout (float | timedelta | None): time limit for the rendezvous in seconds, and timeout of the store.
            Default 30 minutes. ``file://`` does not use it.
        token (str | bytes | None): the secret of the job, for a TCP store. Default: the token that the launcher put
            into the environment, if there is one.
        tls (dict | None): PEM files ``certificate``, ``key`` and ``authorities``. Default: those of the environment.
            The defaults apply only if ``token`` and ``tls`` are both None.
        **kwargs (object): arguments for a registered handler.

    Returns:
        Iterator[tuple[Store, int, int]]: yields store, rank and number of workers, once.

    Raises:
        TypeError: an argument has a wrong type, or a keyword is unknown.
        ValueError: a value is missing, is specified twice, or is invalid.
        RuntimeError: the scheme has no handler, or the caller requests a second value.
        StoreError: the store cannot be reached or hosted.
        RendezvousError: ``rdzv://``: not all workers joined in time, or the endpoint cannot be reached.

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
            raise ValueError(f"{name} is {number}: pass a number from 0, or -1 for none")
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
    _check_ranks(url, rank, world_size)
    return _built_in(scheme, url, rank, world_size, timeout, token, tls)


def _built_in(scheme: str, url: str, rank: int, world_size: int, *options: object) -> "Iterator[Met]":
    yield url_rendezvous(url, None if rank == -1 else rank, None if world_size == -1 else world_size, *options)
    how = "rerendezvous" if scheme == "file" else "re-rendezvous"
    raise RuntimeError(f"Unable to perform {how} using {scheme}:// method")


def _check_ranks(url: str, rank: int, world_size: int) -> None:
    """Refuses repeated values, and a rank outside of the world size."""
    known = {"rank": rank, "world_size": world_size}
    has_arguments, seen = rank != -1 or world_size != -1, set()
    for name, _, value in (word.partition("=") for word in urlsplit(url).query.split("&")):
        if name in seen:
            raise ValueError(f"the URL {url} has two values of {name}")
        if name in known:
            if has_arguments:
                raise ValueError(_TWICE.format(url))
            seen.add(name)
            if value.isascii() and value.isdigit():
                known[name] = int(value)
    rank, world_size = known["rank"], known["world_size"]
    if world_size == 0:
        raise ValueError("world_size is 0: a job has at least one worker")
    if -1 < world_size <= rank:
        raise ValueError(f"rank is {rank}, and world_size is {world_size}: ranks are 0 to {world_size - 1}")


def _with_ranks(url: str, rank: int, world_size: int) -> str:
    """Adds the specified rank and world size to the query of a URL."""
    parts = urlsplit(url)
    given = {"rank": rank, "world_size": world_size}
    given = {name: number for name, number in given.items() if number != -1}
    words = [word for word in parts.query.split("&") if word]
    if given and any(word.partition("=")[0] in ("rank", "world_size") for word in words):
        raise ValueError(_TWICE.format(url))
    query = "&".join([*words, *(f"{name}={number}" for name, number in given.items())])
    return urlunsplit(parts._replace(query=query))


for _public in (register_rendezvous_handler, rendezvous):
    _public.__module__ = "rdzv.rendezvous"
