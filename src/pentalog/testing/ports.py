"""TCP ports that stay reserved while the process that listens on them is down.

Closing a socket and starting a server on its port is a race: between the two, the kernel may give
the port to any other process.  A reserved port is held by a socket that is bound and never
listens.  With SO_REUSEADDR on both sides a server can still bind the port and listen on it, as
often as it is restarted, but the kernel never picks the port for another process.  Connections are
refused while no server listens.
"""

from __future__ import annotations

import socket


def reserve_port(host: str = "127.0.0.1") -> int:
    """Return a free port and keep it reserved until this process ends.

    The server must set SO_REUSEADDR before it binds, as pentalog, asyncio and Java do.  A server
    that is started once needs no reservation: let it listen on port 0 and say which it got.
    """
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host, 0))
    port: int = holder.getsockname()[1]
    holder.detach()  # the descriptor stays open
    return port
