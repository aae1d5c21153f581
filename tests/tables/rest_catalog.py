"""Apache Iceberg's own REST catalog server, on loopback, with its tables on an S3.

It lends the keys of the S3 with every table, so that who uses it needs none.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import jar_files
import pyspark
import pytest
from object_store import BUCKET

from pentalog.tables import archive
from pentalog.testing.ports import reserve_port

_PACKAGES = (
    "org.apache.iceberg:iceberg-open-api:1.10.1:test-fixtures",
    "org.apache.iceberg:iceberg-core:1.10.1:tests",
    "org.apache.iceberg:iceberg-core:1.10.1",
    "org.apache.iceberg:iceberg-aws:1.10.1",
    "org.eclipse.jetty:jetty-servlet:11.0.26",
    "software.amazon.awssdk:s3:2.33.0",
    "software.amazon.awssdk:kms:2.33.0",
    "software.amazon.awssdk:sts:2.33.0",
    "org.xerial:sqlite-jdbc:3.53.4.0",
)
_ENOUGH_S = 120


@contextmanager
def started(folder: Path, store: Mapping[str, str], port: int = 0) -> Iterator[str]:
    """The server's address; it keeps what it knows in `folder`."""
    try:
        java = archive.java()
    except archive.NoJava as why:
        pytest.skip(str(why))
    files = jar_files.fetched("iceberg-rest-1.10.1", _PACKAGES)
    hadoop = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar")
    port = port or reserve_port()
    settings = {
        "REST_PORT": str(port),
        "URI": f"jdbc:sqlite:{folder}/rest.db",
        "WAREHOUSE": f"s3://{BUCKET}/warehouse",
        "IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "S3_ENDPOINT": store["AWS_ENDPOINT_URL"],
        "S3_PATH__STYLE__ACCESS": "true",
        "S3_ACCESS__KEY__ID": store["AWS_ACCESS_KEY_ID"],
        "S3_SECRET__ACCESS__KEY": store["AWS_SECRET_ACCESS_KEY"],
        "CLIENT_REGION": store["AWS_REGION"],
        "INCLUDE__CREDENTIALS": "true",
    }
    with (folder / "rest.log").open("w") as log:
        server = subprocess.Popen(
            [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
             "-cp", ":".join([f"{files}/*", *map(str, hadoop)]),
             "org.apache.iceberg.rest.RESTCatalogServer"],
            env={**os.environ, **{f"CATALOG_{name}": one for name, one in settings.items()}},
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _wait(server, f"http://127.0.0.1:{port}/v1/config", folder / "rest.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + _ENOUGH_S
    while True:
        assert server.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < until, "the catalog did not answer"
        try:
            with urllib.request.urlopen(address, timeout=10):
                return
        except OSError:
            time.sleep(0.1)
