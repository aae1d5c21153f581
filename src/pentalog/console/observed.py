"""What the broker tells of itself at its http listener: rates, metrics, connections, frames."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from pentalog.clients import trust
from pentalog.console.place import Place

_TIMEOUT_S: Final = 5.0
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_FRAME_BYTES: Final = 256


class NotTold(Exception):
    """The listener is not there or does not answer; the text says so."""


class Sample(NamedTuple):
    """One line of metrics."""

    name: str
    labels: dict[str, str]
    value: float


class Observed:
    def __init__(self, place: Place) -> None:
        """Where it names no address, the broker has no http listener, or none we know of."""
        self.address = place.http
        self._place = place
        self._client: httpx.AsyncClient | None = None

    def check(self) -> None:
        """Raise what to say where there is no listener."""
        if not self.address:
            raise NotTold(
                "This broker has no http listener, so it does not tell this; start it with"
                " --listen http=127.0.0.1:9644 beside its other listeners."
            )

    def _open(self) -> httpx.AsyncClient:
        self.check()
        if self._client is None:
            place = self._place
            scheme = "https" if place.http_tls else "http"
            key = place.http_key
            self._client = httpx.AsyncClient(
                base_url=f"{scheme}://{self.address}",
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=_TIMEOUT_S,
                trust_env=False,
                verify=_trusted(place),
            )
        return self._client

    async def rates(self) -> dict[str, Any]:
        """Totals by door since the start, and when."""
        return dict(await self._json("/api/v1/rates"))

    async def connections(self) -> list[dict[str, Any]]:
        found = await self._json("/api/v1/connections")
        return list(found["connections"])

    async def subscriptions(self) -> list[dict[str, Any]]:
        found = await self._json("/api/v1/subscriptions")
        return list(found["subscriptions"])

    async def metrics(self) -> list[Sample]:
        return parse_metrics((await self._get("/metrics")).text)

    async def frames(self, connection: int) -> AsyncGenerator[dict[str, Any], None]:
        """Frames of a connection as they pass, until it closes."""
        client = self._open()
        path = f"/api/v1/inspect/{connection}?bytes={_FRAME_BYTES}"
        timeout = httpx.Timeout(_TIMEOUT_S, read=None)
        try:
            async with client.stream("GET", path, timeout=timeout) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise NotTold((await answer.aread()).decode("utf-8", "replace").strip())
                async for line in answer.aiter_lines():
                    if line.strip():
                        yield msgspec.json.decode(line)
        except httpx.HTTPError as error:
            raise NotTold(f"the broker's http listener broke off: {error}") from error

    async def _json(self, path: str) -> Any:
        return msgspec.json.decode((await self._get(path)).content)

    async def _get(self, path: str) -> httpx.Response:
        try:
            answer = await self._open().get(path)
        except httpx.HTTPError as error:
            await self.close()  # the certificate that is trusted may have been replaced
            raise NotTold(
                f"the broker's http listener at {self.address} does not answer: "
                f"{error or type(error).__name__}"
            ) from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise NotTold(f"This broker does not tell {path}.")
        if answer.status_code != httpx.codes.OK:
            raise NotTold(f"{path}: {answer.text.strip()}")
        return answer

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _trusted(place: Place) -> ssl.SSLContext | bool:
    if not place.http_tls:
        return True
    try:
        certificate = place.certificate()
        if certificate is not None:
            return trust.only(certificate)
        return ssl.create_default_context(cafile=place.tls_authorities)
    except OSError as error:
        raise NotTold(f"the broker's certificate cannot be read: {error}") from error


def parse_metrics(text: str) -> list[Sample]:
    """Prometheus's text format, as far as this broker writes it."""
    found = []
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None:
            continue
        labels = {
            name: re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], value)
            for name, value in _LABEL.findall(match[2] or "")
        }
        try:
            found.append(Sample(match[1], labels, float(match[3])))
        except ValueError:
            continue
    return found
