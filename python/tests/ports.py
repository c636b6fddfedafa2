"""Free ports."""

import socket

HELD = []


def free_port():
    """A port at which nobody listens. It stays bound until this process ends, so that nobody else gets it.

    Stores and most servers set SO_REUSEADDR, and can listen at it nevertheless.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    HELD.append(held)
    return held.getsockname()[1]
