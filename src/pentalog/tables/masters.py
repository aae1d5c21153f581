"""Where Spark runs its work: what names are meant, and whether somebody answers there."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

_LOCAL: Final = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?")
_PLACE: Final = re.compile(r"([^:/]+|\[[0-9a-fA-F:]+\]):(\d+)")
_PROPERTY: Final = re.compile(r"\s*([^\s=:#!]+)\s*[\s=:]\s*(.*?)\s*")
_PATIENCE_S: Final = 5.0
_ACCEPTED: Final = "local[*], local[N], spark://HOST:PORT, k8s://https://HOST:PORT or yarn"
_YARN_DIRECTORIES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""In the order in which Spark looks into them."""
_YARN_PORT: Final = 8032
_RESOURCE_MANAGER: Final = "yarn.resourcemanager"
_IMAGES: Final = (
    "spark.kubernetes.container.image",
    "spark.kubernetes.executor.container.image",
)


def is_local(master: str) -> bool:
    return _LOCAL.fullmatch(master) is not None


def trouble(master: str, settings: Mapping[str, str] | None = None) -> str:
    """Why nothing can run there with these settings of Spark's; empty if it is worth trying.

    Spark itself would say so after minutes, and in a page of Java.
    """
    if is_local(master):
        return ""
    if master == "yarn":
        return _yarn_trouble()
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
    if kind == "k8s" and not any({**_defaults(), **(settings or {})}.get(one) for one in _IMAGES):
        return (
            f"master {master}: which image executors run is not said; name one that has"
            f" pentalog[spark] and Java in it by {_IMAGES[0]}, in the pipeline's `spark` or in"
            " spark-defaults.conf of the directory SPARK_CONF_DIR"
        )
    return ""


def _yarn_trouble() -> str:
    named = {one: os.environ[one] for one in _YARN_DIRECTORIES if os.environ.get(one)}
    if not named:
        return (
            "master yarn: the cluster is described by the files of a directory; name it in"
            " HADOOP_CONF_DIR or YARN_CONF_DIR"
        )
    files = [Path(one) / "yarn-site.xml" for one in named.values()]
    file = next((one for one in files if one.is_file()), None)
    if file is None:
        where = " and ".join(f"{name}={place}" for name, place in named.items())
        return (
            f"master yarn: {where} has no yarn-site.xml; name the directory of the cluster's files"
        )
    try:
        places = _resource_managers(_properties(file))
    except (OSError, ElementTree.ParseError) as error:
        return f"master yarn: {file} cannot be read: {error}; mend it, or name another directory"
    silent = [_silence(*place) for place in places]
    if silent and all(silent):
        return f"master yarn: no ResourceManager of {file} answers: {'; '.join(silent)}"
    return ""


def _properties(file: Path) -> dict[str, str]:
    return {
        one.findtext("name", "").strip(): one.findtext("value", "").strip()
        for one in ElementTree.parse(file).getroot().iter("property")
    }


def _resource_managers(given: Mapping[str, str]) -> list[tuple[str, int]]:
    """Where they listen; nothing of those whose addresses only Hadoop can tell."""
    several = given.get(f"{_RESOURCE_MANAGER}.ha.rm-ids", "")
    suffixes = [f".{one.strip()}" for one in several.split(",")] if several else [""]
    found = []
    for suffix in suffixes:
        host = given.get(f"{_RESOURCE_MANAGER}.hostname{suffix}", "")
        address = given.get(f"{_RESOURCE_MANAGER}.address{suffix}", f"{host}:{_YARN_PORT}")
        place = _PLACE.fullmatch(address if ":" in address else f"{address}:{_YARN_PORT}")
        if place is None or "$" in address:
            return []
        found.append((place[1].strip("[]"), int(place[2])))
    return found


def _defaults() -> dict[str, str]:
    """What stands in `spark-defaults.conf`, which Spark's own start reads."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if not folder and os.environ.get("SPARK_HOME"):
        folder = f"{os.environ['SPARK_HOME']}/conf"
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text() if folder else ""
    except OSError:
        return {}
    lines = (_PROPERTY.fullmatch(one) for one in text.splitlines())
    return {one[1]: one[2] for one in lines if one}


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
