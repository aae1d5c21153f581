"""Who a browser is to the broker: one seam for logins, and the connections made in that name.

Every call of a browser's pages goes to the broker as its user, so the broker's own rules decide
what may be seen and done; what is read from files directly is asked for first.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from pentalog.clients.kafka import ClientOptions, Cluster, KafkaFailed
from pentalog.clients.kafka.rights import check_readable
from pentalog.console.observed import NotTold
from pentalog.console.place import Place
from pentalog.console.rights import check_operator
from pentalog.log.reader import DirectoryUnreadable
from pentalog.tables.options import SourceOptions
from pentalog.tables.origins import ClusterOrigin, Origin
from pentalog.tables.segments import DirectoryOrigin

T = TypeVar("T")

CLIENT_ID: Final = "pentalog-console"
TIMEOUT_MS: Final = 5_000
SESSIONS_MAX: Final = 1_000


class Session:
    """One browser."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.user = ""
        self.dark: bool | None = None
        """None: as the browser prefers."""
        self._options = ClientOptions(
            timeout_ms=TIMEOUT_MS,
            client_id=CLIENT_ID,
            tls=place.tls,
            tls_authorities=place.tls_authorities,
        )
        self._cluster: Cluster | None = None
        self._lock = threading.Lock()

    @property
    def known(self) -> bool:
        """Whether pages may be shown, or a login must come first."""
        return not self.place.login or bool(self.user)

    async def ask(self, question: Callable[[Cluster], T]) -> T:
        """Ask the broker on a thread, one question of a browser at a time."""
        return await asyncio.to_thread(self._ask, question)

    def _ask(self, question: Callable[[Cluster], T]) -> T:
        with self._lock:
            if self._cluster is None:
                self._cluster = self.cluster()
            return question(self._cluster)

    def cluster(self) -> Cluster:
        """Connections of their own, for what takes longer."""
        return Cluster(self.place.servers, self._present(self._options))

    def _present(self, options: ClientOptions) -> ClientOptions:
        """With the broker's certificate of today: it may have been replaced."""
        return replace(options, tls_certificate=self.place.certificate())

    def origin(self, topic: str) -> Origin:
        """Where records of a topic can be read fastest; raises what the broker refuses.

        Files do not know who may read them, so the broker is asked for the right first.
        """
        if self.place.data is not None:
            self._ask(lambda cluster: check_readable(cluster, topic))
            files = DirectoryOrigin(str(self.place.data))
            # The broker publishes a new topic to readers of its files a moment after its creation.
            if topic in files.topics():
                return files
        options = SourceOptions(
            servers=self.place.servers, topics=(topic,), client=self._present(self._options)
        )
        return ClusterOrigin(options)

    async def check_operator(self) -> None:
        """Raise what is to be said to those who may not see what concerns everybody.

        The broker's http listener does not ask who is looking, so the Kafka door is asked.
        """
        if self.place.login:
            await self.ask(check_operator)

    async def log_in(self, user: str, password: str, mechanism: str) -> None:
        """Become a user of the broker; raises `KafkaFailed` if it does not let us."""
        options = replace(self._options, sasl_mechanism=mechanism, username=user, password=password)
        cluster = Cluster(self.place.servers, self._present(options))
        try:
            await asyncio.to_thread(cluster.topics, [])
        except BaseException:
            cluster.close()
            raise
        with self._lock:
            self._leave()
            self._cluster, self._options, self.user = cluster, options, user

    def log_out(self) -> None:
        with self._lock:
            self._leave()
            self._options = replace(self._options, sasl_mechanism="", username="", password="")
            self.user = ""

    def _leave(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


class Sessions:
    """Every browser by its cookie; those unused for longest are forgotten first."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def get(self, browser: str) -> Session:
        session = self._sessions.get(browser)
        if session is None:
            session = self._sessions[browser] = Session(self.place)
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)[1].log_out()
        self._sessions.move_to_end(browser)
        return session


def explain(error: BaseException) -> str:
    """A failure as a page says it."""
    if isinstance(error, KafkaFailed | NotTold | DirectoryUnreadable | OSError | ValueError):
        return str(error)
    return f"{type(error).__name__}: {error}"
