"""Who a browser is to the broker: one seam for logins, and the connections made in that name.

Every call of a browser's pages goes to the broker as its user, or as an unknown client where the
broker demands no login, so the broker's own rules decide what may be seen and done; what is read
from files directly is asked for first.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from pentalog.clients.kafka import ClientOptions, Cluster, KafkaFailed
from pentalog.clients.kafka.errors import Refused
from pentalog.clients.kafka.rights import check_readable
from pentalog.console.connections import Connections, Threads
from pentalog.console.observed import NotTold
from pentalog.console.place import Place
from pentalog.console.rights import check_operator
from pentalog.console.search import Search
from pentalog.log.reader import DirectoryUnreadable
from pentalog.model.kio_schemas import ErrorCode
from pentalog.tables.options import SourceOptions
from pentalog.tables.origins import ClusterOrigin, Origin
from pentalog.tables.segments import DirectoryOrigin

T = TypeVar("T")

CLIENT_ID: Final = "pentalog-console"
TIMEOUT_MS: Final = 5_000
SESSIONS_MAX: Final = 1_000
SEARCHES_MAX: Final = 8
"""Of all users together, and as many of all unknown visitors."""
OPERATOR_S: Final = 2.0
"""The broker is asked again after this time whether a browser may see what concerns everybody."""
_CONNECTION_IDLE_S: Final = 15.0
_FORGET_S: Final = 600.0
"""Browsers that neither logged in nor have a page open are forgotten after this time."""
_UNKNOWN_AT_ONCE: Final = 4


class SessionOver(Exception):
    """The browser must log in, for the first time or again."""


class Session:
    """One browser."""

    def __init__(
        self,
        place: Place,
        *,
        unknown: Connections | None = None,
        threads: Threads | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`unknown` are the connections that browsers share that have not logged in."""
        self.place = place
        self.user = ""
        self.dark: bool | None = None
        """None: as the browser prefers."""
        self.pages = 0
        """Those that are open."""
        self.used_s = now()
        self._now = now
        self._logged_in_s = 0.0
        self._threads = threads or Threads()
        self._unknown = unknown or unknown_connections(place, self._threads)
        self._connections = self._unknown
        self._logging_in = asyncio.Lock()
        self._operator_until_s = 0.0

    @property
    def known(self) -> bool:
        """Whether pages may be shown, or a login must come first."""
        self.end_if_due()
        return not self.place.login or bool(self.user)

    def touch(self) -> None:
        """Note that its user does something."""
        if self.known:
            self.used_s = self._now()

    def end_if_due(self) -> None:
        """Log out a user who did nothing for too long, or has been in for too long."""
        now = self._now()
        idle = now - self.used_s > self.place.session_idle_s
        if self.user and (idle or now - self._logged_in_s > self.place.session_max_s):
            self.log_out()

    async def ask(self, question: Callable[[Cluster], T]) -> T:
        """Ask the broker on a thread, one question of a user at a time."""
        if not self.known:
            raise SessionOver("Your session has ended; log in again.")
        connections = self._connections
        try:
            return await connections.ask(question)
        except Refused as refused:
            if refused.code is ErrorCode.sasl_authentication_failed:
                if connections is self._connections:
                    self.log_out()
                raise SessionOver("The broker does not accept your login any more.") from refused
            raise

    def cluster(self) -> Cluster:
        """Connections of their own, for what takes longer."""
        if not self.known:
            raise SessionOver("Your session has ended; log in again.")
        return self._connections.cluster()

    async def origin(self, topic: str) -> Origin:
        """Where records of a topic can be read fastest; raises what the broker refuses.

        Files do not know who may read them, so the broker is asked for the right first.
        """
        await self.check_readable(topic)
        return await asyncio.to_thread(self._origin, topic)

    async def check_readable(self, topic: str) -> None:
        """Raise what the broker refuses to those who may not read a topic."""
        await self.ask(lambda cluster: check_readable(cluster, topic))

    def _origin(self, topic: str) -> Origin:
        if self.place.data is not None:
            files = DirectoryOrigin(str(self.place.data))
            # The broker publishes a new topic to readers of its files a moment after its creation.
            if topic in files.topics():
                return files
        certificate = self.place.certificate()
        options = SourceOptions(
            servers=self.place.servers,
            topics=(topic,),
            client=replace(self._connections.options, tls_certificate=certificate),
        )
        return ClusterOrigin(options)

    async def check_operator(self) -> None:
        """Raise what is to be said to those who may not see what concerns everybody.

        The console may see more than its visitors, so the broker is asked in their name, and again
        after a moment: rights can be taken away while a page is open.
        """
        if not self.known:
            raise SessionOver("Your session has ended; log in again.")
        if self._now() < self._operator_until_s:
            return
        await self.ask(check_operator)
        self._operator_until_s = self._now() + OPERATOR_S

    async def log_in(self, user: str, password: str, mechanism: str) -> None:
        """Become a user of the broker; raises `KafkaFailed` if it does not let us."""
        options = replace(
            self._unknown.options, sasl_mechanism=mechanism, username=user, password=password
        )
        async with self._logging_in:
            # Guesses must not take the threads of those who have logged in.
            made = Connections(self.place, options, self._threads.unknown, 1)
            try:
                await made.ask(lambda cluster: cluster.topics([]))
            except BaseException:
                made.close()
                raise
            made.use(self._threads.known)
            self.log_out()
            self._connections, self.user = made, user
            self.used_s = self._logged_in_s = self._now()

    def log_out(self) -> None:
        if self._connections is not self._unknown:
            self._connections.close()
        self._connections = self._unknown
        self._operator_until_s = 0.0
        self.user = ""

    def keep_search(self, search: Search) -> None:
        """Count a search that is about to start; raises `ValueError` if there are too many."""
        kept = self._threads.searches[bool(self.user)]
        if len(kept) >= SEARCHES_MAX:
            raise ValueError(
                f"{SEARCHES_MAX} searches are kept by open pages; close one of them and try again"
            )
        kept.add(search)

    def drop_search(self, search: Search) -> None:
        search.cancel()
        for kept in self._threads.searches.values():
            kept.discard(search)

    def page_opened(self) -> None:
        self.pages += 1

    def page_closed(self) -> None:
        """Nothing stays connected when the last page is gone."""
        self.pages -= 1
        if not self.pages:
            self.close_idle(0.0)

    def close_idle(self, unused_s: float) -> None:
        self._connections.close_idle(unused_s)


def unknown_connections(place: Place, threads: Threads) -> Connections:
    """Those of browsers that have not logged in; the broker takes all of them for one client."""
    options = ClientOptions(
        timeout_ms=TIMEOUT_MS,
        client_id=CLIENT_ID,
        tls=place.tls,
        tls_authorities=place.tls_authorities,
    )
    return Connections(place, options, threads.unknown, _UNKNOWN_AT_ONCE)


class Sessions:
    """Every browser by its cookie; room for new ones is made at the cost of unknown ones first."""

    def __init__(self, place: Place, now: Callable[[], float] = time.monotonic) -> None:
        self.place = place
        self._now = now
        self._threads = Threads()
        self._unknown = unknown_connections(place, self._threads)
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def get(self, browser: str) -> Session:
        session = self._sessions.get(browser)
        if session is None:
            if len(self._sessions) >= SESSIONS_MAX:
                self._make_room()
            session = self._sessions[browser] = Session(
                self.place, unknown=self._unknown, threads=self._threads, now=self._now
            )
        self._sessions.move_to_end(browser)
        return session

    def tidy(self) -> None:
        """End sessions whose time has come, and connections that nobody uses."""
        now = self._now()
        for browser, session in list(self._sessions.items()):
            session.end_if_due()
            session.close_idle(_CONNECTION_IDLE_S)
            if not session.user and not session.pages and now - session.used_s > _FORGET_S:
                del self._sessions[browser]

    def _make_room(self) -> None:
        """Forget the session that is missed least.

        Unknown browsers without a page go first, those with one next.  Among users the one with
        the most sessions loses the session that was not used for longest.
        """
        held = Counter(session.user for session in self._sessions.values())

        def cost(browser: str) -> tuple[bool, int, bool]:
            session = self._sessions[browser]
            return bool(session.user), -held[session.user] if session.user else 0, session.pages > 0

        # The oldest of equals: min takes the first, and they are in the order of their use.
        browser = min(self._sessions, key=cost)
        self._sessions.pop(browser).log_out()


def explain(error: BaseException) -> str:
    """A failure as a page says it."""
    known = KafkaFailed | NotTold | SessionOver | DirectoryUnreadable | OSError | ValueError
    if isinstance(error, known):
        return str(error)
    return f"{type(error).__name__}: {error}"
