"""An S3 of its own on loopback, conditional writes included."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow import fs

BUCKET = "lake"


@contextmanager
def started() -> Iterator[dict[str, str]]:
    """What a pipeline needs as `storage_options` to use it; it has one bucket."""
    # A process of its own: the table library waits for answers without letting go of Python.
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    assert server.stderr is not None
    drain = threading.Thread(target=server.stderr.read, daemon=True)
    try:
        found = (re.search(r"http://(127\.0\.0\.1:\d+)", line) for line in server.stderr)
        address = next(one[1] for one in found if one)
        drain.start()
        fs.S3FileSystem(
            access_key="test", secret_key="test", region="us-east-1", scheme="http",
            endpoint_override=address, allow_bucket_creation=True,
        ).create_dir(BUCKET)  # fmt: skip
        yield {
            "AWS_ENDPOINT_URL": f"http://{address}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        server.kill()
        server.wait()
        if drain.is_alive():
            drain.join()
        server.stderr.close()
