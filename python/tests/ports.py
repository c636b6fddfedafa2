"""Free ports."""

import socket

HELD = []


def free_port():
    """Port without a listener.

    It stays bound until this process ends, so that no other process gets it.

    Stores and most servers set SO_REUSEADDR, and can listen at it nevertheless.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    HELD.append(held)
    return held.getsockname()[1]
