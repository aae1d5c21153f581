"""Where Spark runs its work: what names are meant, and whether somebody answers there."""

from __future__ import annotations

import os
import re
import socket
from typing import Final

_LOCAL: Final = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?")
_PLACE: Final = re.compile(r"([^:/]+|\[[0-9a-fA-F:]+\]):(\d+)")
_PATIENCE_S: Final = 5.0
_ACCEPTED: Final = "local[*], local[N], spark://HOST:PORT, k8s://https://HOST:PORT or yarn"


def is_local(master: str) -> bool:
    return _LOCAL.fullmatch(master) is not None


def trouble(master: str) -> str:
    """Why nothing can run there; empty if it is worth trying.

    Spark itself would say so after a minute, and in a page of Java.
    """
    if is_local(master):
        return ""
    if master == "yarn":
        if os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR"):
            return ""
        return (
            "master yarn: the cluster is described by the files of a directory; name it in"
            " HADOOP_CONF_DIR or YARN_CONF_DIR"
        )
    kind, separator, rest = master.partition("://")
    if not separator or kind not in ("spark", "k8s"):
        return f"master {master!r} is not known; accepted are {_ACCEPTED}"
    places = [_place(kind, one) for one in rest.split(",")]
    if None in places:
        return f"master {master!r} has no HOST:PORT; accepted are {_ACCEPTED}"
    silent = [_silence(*place) for place in places if place is not None]
    if all(silent):
        what = "Spark master" if kind == "spark" else "Kubernetes API server"
        return f"master {master}: no {what} answers: {'; '.join(silent)}"
    return ""


def _place(kind: str, text: str) -> tuple[str, int] | None:
    """The host and port of a master; Kubernetes' are addresses of the web, with ports of theirs."""
    scheme, separator, rest = text.partition("://")
    bare = rest if separator else text
    if kind == "k8s":
        bare = bare.partition("/")[0]
        if ":" not in bare:
            bare = f"{bare}:{80 if scheme == 'http' else 443}"
    found = _PLACE.fullmatch(bare)
    return (found[1].strip("[]"), int(found[2])) if found else None


def _silence(host: str, port: int) -> str:
    """What is wrong with a place, or nothing if somebody listens there."""
    try:
        socket.create_connection((host, port), _PATIENCE_S).close()
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return ""
