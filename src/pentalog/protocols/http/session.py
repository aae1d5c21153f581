"""One HTTP connection: GET and HEAD of a few paths, answered from what the broker knows.

Any bytes give answers or a hang-up.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from heapq import nsmallest
from ipaddress import ip_address
from operator import attrgetter
from typing import Final, TypeVar
from urllib.parse import quote

from pentalog.broker.security import Kind, Operation
from pentalog.model.later import Later
from pentalog.observation import Health, NotInspected, Observation
from pentalog.protocols.http import exposition, frames, hosts, lookups, messages
from pentalog.protocols.http.frames import HEAD_BYTES_MAX, Bad, Request
from pentalog.protocols.http.hosts import host_only
from pentalog.protocols.http.messages import Answer
from pentalog.protocols.http.streams import FrameStream
from pentalog.protocols.http.views import connection_view, door_view, subscription_view
from pentalog.session import Context, Replies

T = TypeVar("T")

_CLIENT_MAX: Final = 100
_CONNECTIONS_MAX: Final = 1000
"""Told of in one answer."""
_SUBSCRIPTIONS_MAX: Final = 1000
_TURN_COST: Final = 64
"""Of the requests that one connection is served in one turn; others are served before the rest."""
_COSTS: Final[Mapping[str, int]] = {
    "/metrics": _TURN_COST,
    "/api/v1/connections": _TURN_COST,
    "/api/v1/subscriptions": _TURN_COST,
    "/api/v1/rates": 8,
}
_METHODS: Final = ("GET", "HEAD")
_GUARDED: Final = frozenset({"/metrics"})
"""Besides everything below `/api/`; whether the broker lives anybody may know."""
_INSPECT: Final = "/api/v1/inspect/"
_PATHS: Final = """\
pentalog; no web console runs here.  These paths are served:

/metrics                 counters, as Prometheus reads them
/health                  can this process serve, and write to its disk?
/ready                   is every listener open?
/api/v1/connections      who is connected
/api/v1/rates            what has passed through each door
/api/v1/subscriptions    deliveries on lease, and how far behind each is
/api/v1/inspect/NUMBER   the frames of a connection, as they pass
"""


class HttpSession:
    """Serves one connection."""

    def __init__(self, context: Context, replies: Replies) -> None:
        assert context.observation is not None, "this door shows what the server observes"
        self.wanted = 0
        self._context = context
        self._observation: Observation = context.observation
        self._replies = replies
        self._ended = False
        self._stream: FrameStream | None = None
        self._routes: Mapping[str, Callable[[Request], None]] = {
            "/metrics": self._metrics,
            "/health": self._health,
            "/ready": self._ready,
            "/api/v1/connections": self._connections,
            "/api/v1/rates": self._rates,
            "/api/v1/subscriptions": self._subscriptions,
        }

    def receive(self, data: memoryview) -> int:
        used = cost = 0
        self.wanted = 0
        while not self._ended and used < len(data) and not self._replies.full:
            if self._stream is not None and not self._stream.over:
                # Nothing that comes before the stream's end could be answered in its place.
                return len(data)
            try:
                found = frames.read(data[used:])
                if found is None:
                    self.wanted = HEAD_BYTES_MAX + 4
                    break
                request, size = found
                used += size
                self._context.metrics.requests += 1
                self._context.known.client = request.headers.get("user-agent", "")[:_CLIENT_MAX]
                self._serve(request)
                cost += _COSTS.get(request.path, 1)
                if cost >= _TURN_COST and used < len(data) and not self._ended:
                    self._context.runtime.soon(self._replies.hold())
                    break
            except Bad as flaw:
                self._context.metrics.request_errors += 1
                self._replies.send(
                    messages.encode(messages.text(flaw.status, flaw.text), keep_alive=False)
                )
                self._hang_up()
        return len(data) if self._ended else used

    def close(self) -> None:
        self._ended = True
        if self._stream is not None:
            self._stream.close()

    def _serve(self, request: Request) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            self._refuse(request, refusal)
            return
        route = self._routes.get(request.path)
        if route is not None:
            route(request)
        elif request.path.startswith(_INSPECT):
            self._inspect(request)
        elif request.path.startswith("/api/"):
            self._refuse(request, messages.text(404, f"nothing is at {request.path[:200]!r}"))
        else:
            self._elsewhere(request)

    def _refusal(self, request: Request) -> Answer | None:
        """The one place where a request is let in or not."""
        if request.method not in _METHODS:
            return messages.text(
                405, f"{request.method[:20]} is not served; GET and HEAD are", allow="GET, HEAD"
            )
        if not hosts.is_ours(request.host, self._context.config.advertise):
            return messages.text(403, hosts.refusal(request.host))
        guarded = request.path in _GUARDED or request.path.startswith("/api/")
        if guarded and not self._may_look(request):
            return messages.text(
                403,
                f"{self._context.access.who} may not describe the cluster: allow it by a rule, or "
                "say who comes through this listener with --listener-principals http=User:NAME",
            )
        return None

    def _may_look(self, request: Request) -> bool:
        allowed = self._context.access.allows
        return self._is_console(request) or allowed(Operation.DESCRIBE, Kind.CLUSTER)

    def _is_console(self, request: Request) -> bool:
        """It asks its own users who they are, and shows this to those only who may see it."""
        shown = request.headers.get("authorization", "")
        expected = f"Bearer {self._observation.console_key}"
        return hmac.compare_digest(shown.encode(), expected.encode())

    def _metrics(self, request: Request) -> None:
        def told(surveyed: bool) -> Answer:
            body = exposition.text(self._context, self._observation, surveyed=surveyed)
            return Answer(200, body.encode(), messages.METRICS)

        if self._context.broker.knowledge.current:
            self._answer(request, told(surveyed=True))
        else:
            context = self._context
            self._answer_later(request, lookups.surveyed(context.broker, context.runtime), told)

    def _health(self, request: Request) -> None:
        def told(health: Health) -> Answer:
            flaw = health.flaw
            return messages.text(503, flaw) if flaw else messages.text(200, "healthy")

        self._answer_later(request, self._observation.health(), told)

    def _answer_later(
        self, request: Request, later: Later[T], answer: Callable[[T], Answer]
    ) -> None:
        place = self._replies.place()
        ends = not request.keep_alive

        def fill(filled: Later[T]) -> None:
            encoded = messages.encode(
                answer(filled.value), keep_alive=not ends, bodiless=request.method == "HEAD"
            )
            place.fill(encoded)

        later.then(fill)
        if ends:
            self._hang_up()

    def _ready(self, request: Request) -> None:
        if self._observation.ready:
            self._answer(request, messages.text(200, "ready"))
        else:
            self._answer(request, messages.text(503, "not ready: not every listener is open"))

    def _connections(self, request: Request) -> None:
        after = frames.number(request, "after", 0)
        found, more = self._observation.connections(after=after, count=_CONNECTIONS_MAX)
        views = [connection_view(view) for view in found]
        self._answer(request, messages.json({"connections": views, "more": more}))

    def _rates(self, request: Request) -> None:
        views = [door_view(view) for view in self._observation.doors()]
        value = {
            "time_ms": self._context.runtime.now_ms(),
            "started_ms": self._observation.started_ms,
            "doors": views,
        }
        self._answer(request, messages.json(value))

    def _subscriptions(self, request: Request) -> None:
        after = frames.number(request, "after", 0)
        every = self._context.broker.subscriptions.all()
        ahead = [view for view in every if view.subscription_id > after]
        first = nsmallest(_SUBSCRIPTIONS_MAX, ahead, key=attrgetter("subscription_id"))
        views = [subscription_view(view) for view in first]
        more = len(ahead) - len(first)
        self._answer(request, messages.json({"subscriptions": views, "more": more}))

    def _inspect(self, request: Request) -> None:
        word = request.path.removeprefix(_INSPECT)
        if not (word.isascii() and word.isdigit() and len(word) < 19):
            self._refuse(request, messages.text(400, f"{word[:50]!r} is not a connection's number"))
            return
        if request.method == "HEAD":
            head = messages.stream_head(messages.LINES, chunks=True, keep_alive=request.keep_alive)
            self._send(request, head)
            return
        try:
            stream = FrameStream(
                self._context, self._replies, request, lambda: self._may_look(request)
            )
            stream.open(self._observation, int(word))
        except Bad as flaw:
            self._refuse(request, messages.text(flaw.status, flaw.text))
        except NotInspected as refusal:
            self._refuse(request, messages.text(404, str(refusal)))
        else:
            self._stream = stream

    def _elsewhere(self, request: Request) -> None:
        console = self._observation.console_url
        if console is not None:
            location = _reached(console, host_only(request.host)) + quote(request.path)
            self._answer(request, messages.text(307, f"see {location}", location=location))
        elif request.path == "/":
            self._answer(request, Answer(200, _PATHS.encode()))
        else:
            self._refuse(request, Answer(404, _PATHS.encode()))

    def _refuse(self, request: Request, answer: Answer) -> None:
        self._context.metrics.request_errors += 1
        self._answer(request, answer)

    def _answer(self, request: Request, answer: Answer) -> None:
        bodiless = request.method == "HEAD"
        self._send(
            request, messages.encode(answer, keep_alive=request.keep_alive, bodiless=bodiless)
        )

    def _send(self, request: Request, data: bytes) -> None:
        self._replies.send(data)
        if not request.keep_alive:
            self._hang_up()

    def _hang_up(self) -> None:
        self._ended = True
        self._replies.hang_up()


def _reached(console: str, host: str) -> str:
    """The console's address, with the name this machine was called by where it has any of them.

    A certificate is good for names, not for addresses, and 0.0.0.0 leads nowhere from elsewhere.
    """
    scheme, _, rest = console.rstrip("/").partition("://")
    own = ip_address(host_only(rest))
    if host and (own.is_unspecified or (own.is_loopback and host.lower() == "localhost")):
        shown = f"[{host}]" if ":" in host else host
        return f"{scheme}://{shown}:{rest.rpartition(':')[2]}"
    return f"{scheme}://{rest}"
