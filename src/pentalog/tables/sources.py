"""Whether there is anything to read from, asked before Spark is started for it."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Final

from pentalog.clients.kafka.cluster import Cluster
from pentalog.clients.kafka.connection import parse_servers
from pentalog.clients.kafka.errors import KafkaFailed
from pentalog.clients.kafka.rights import check_readable
from pentalog.tables.options import SourceOptions

_PATIENCE_S: Final = 5.0


def trouble(servers: str, data: str = "") -> str:
    """Why nothing can be read there; empty if it is worth trying.

    One server that answers is enough.  A reader would go on asking for its whole timeout, since a
    broker that comes back must only delay it; before the first record nobody wants to wait so long.
    """
    if data:
        if Path(data).is_dir():
            return ""
        return f"{data} is no directory; name the --data of a broker on this machine"
    try:
        places = parse_servers(servers)
    except KafkaFailed as error:
        return str(error)
    silent = [_silence(*place) for place in places]
    if all(silent):
        return (
            f"{', '.join(silent)}; start a broker with `pentalog start` or name another HOST:PORT"
        )
    return ""


def check_allowed(options: SourceOptions) -> None:
    """Raise `KafkaFailed` for what a reader would be refused: its login, or a topic.

    A topic that is not there is left to those who know what that means to them.
    """
    if options.data:
        return
    client = replace(options.client, timeout_ms=int(_PATIENCE_S * 1000))
    with Cluster(options.servers, client) as cluster:
        for topic in cluster.topics(options.topics or None):
            if options.topics or re.fullmatch(options.pattern, topic.name):
                check_readable(cluster, topic.name)


def _silence(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=_PATIENCE_S).close()
    except OSError as error:
        return f"cannot reach {host}:{port}: {error.strerror or error}"
    return ""
