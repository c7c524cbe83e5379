"""A port for processes that are to meet."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One that nobody else is given for a minute: a connection over it has just been closed, and
    only who asks for this very port, as the processes do, gets it."""
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        client.connect(server.getsockname())
        server.accept()[0].close()
        port: int = server.getsockname()[1]
    return port
