"""What the http listener answers while there is no broker behind it yet."""

from __future__ import annotations

from collections.abc import Mapping

from pentalog.config import Listen
from pentalog.protocols.http import frames, hosts, messages
from pentalog.protocols.http.frames import Bad, Request
from pentalog.protocols.http.messages import Answer


def answer(data: memoryview, standing: str, advertised: Mapping[str, Listen]) -> bytes | None:
    """The whole answer to a request, after which the connection ends; None: it is not whole.

    `standing` says how far the start is, `advertised` what clients are told to connect to.
    """
    try:
        found = frames.read(data)
    except Bad as flaw:
        return messages.encode(messages.text(flaw.status, flaw.text), keep_alive=False)
    if found is None:
        return None
    request, _ = found
    return messages.encode(
        _answer(request, standing, advertised), keep_alive=False, bodiless=request.method == "HEAD"
    )


def _answer(request: Request, standing: str, advertised: Mapping[str, Listen]) -> Answer:
    if not hosts.is_ours(request.host, advertised):
        return messages.text(403, hosts.refusal(request.host))
    if request.path == "/health":
        return messages.text(200, standing)
    # Whoever is sent away now may come again soon.
    return messages.text(503, f"not ready: {standing}", retry_after="1")
