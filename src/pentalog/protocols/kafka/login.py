"""A Kafka connection until it is known who it is: only what logs in is served, one at a time.

Nothing behind a message that waits for its verdict is looked at before the verdict is there.
A client that fails is told so after a while that grows from failure to failure, and is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.protocols.kafka import codec, frames
from pentalog.protocols.kafka.entities import Undecodable
from pentalog.protocols.kafka.errors import ErrorCode
from pentalog.protocols.kafka.frames import Header
from pentalog.protocols.kafka.mechanisms import (
    MECHANISMS,
    MESSAGE_BYTES_MAX,
    Conversation,
    Known,
    Step,
)

if TYPE_CHECKING:
    from pentalog.runtime import Timer
    from pentalog.session import Context, Replies

_log: Final = logging.getLogger(__name__)

_FRAME_BYTES_MAX: Final = MESSAGE_BYTES_MAX + (4 << 10)
"""The longest message of a mechanism, and a header with a client id.  Kafka's own limit,
`sasl.server.max.receive.size`, is 512 KiB."""
_VERSIONS_REQUESTS_MAX: Final = 100
"""ApiVersions is served before a login; Kafka's brokers serve it once."""
_SIZE_BYTES: Final = 4
DEMAND: Final = "sasl"
"""What a listener's name says where clients must log in."""
HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
AUTHENTICATE: Final = 36
_VERSIONS_MAX: Final = {HANDSHAKE: 1, AUTHENTICATE: 2}


class _Stage(Enum):
    BEGUN = auto()
    MECHANISM_CHOSEN = auto()
    OVER = auto()


class Session(NamedTuple):
    """A login that went well."""

    known: Known
    mechanism: str
    lifetime_ms: int
    """0: as long as the connection."""


class Login:
    """One login of one connection; the first one, or one that prolongs it."""

    def __init__(
        self,
        context: Context,
        replies: Replies,
        done: Callable[[Session], None],
        api_versions: Callable[[memoryview, int, int], None],
        before: Session | None = None,
    ) -> None:
        """`api_versions` serves the one request that anybody may ask; `before`: who it was."""
        self.wanted = 0
        self.over = False
        self._context = context
        self._replies = replies
        self._done = done
        self._api_versions = api_versions
        self._before = before
        self._stage = _Stage.BEGUN
        self._mechanism = ""
        self._conversation: Conversation | None = None
        self._bare = False
        """Messages come without a request around them, as after the first handshake there was."""
        self._versions_requests = 0
        self._waits = False
        """A message waits until its address may make another attempt."""
        self._counted = False
        """This login has been counted and audited as a failure."""
        self._release: Callable[[], None] | None = None
        self._timer: Timer | None = context.runtime.after(
            context.config.login_timeout_ms, self._too_late
        )

    def receive(self, data: memoryview) -> int:
        """Serve whole frames until the login is over or has to wait; returns the bytes used."""
        used = 0
        while not self.over and self._release is None:
            left = len(data) - used
            if left < _SIZE_BYTES:
                self.wanted = 0
                break
            size = int.from_bytes(data[used : used + _SIZE_BYTES], "big", signed=True)
            if not 0 <= size <= _FRAME_BYTES_MAX:
                self.violate(
                    f"a frame of {size} bytes before a login; accepted are 0..{_FRAME_BYTES_MAX}"
                )
                break
            self.wanted = size + _SIZE_BYTES
            if left < self.wanted:
                break
            start, used = used + _SIZE_BYTES, used + self.wanted
            self.serve(data, start, used)
        return used

    def close(self) -> None:
        self.over = True
        self._context.access.cancel_attempt()
        self._stop_timer()

    def serve(self, data: memoryview, start: int, end: int) -> None:
        """One frame."""
        self._context.metrics.requests += 1
        if end - start > _FRAME_BYTES_MAX:
            self.violate(
                f"a frame of {end - start} bytes for a login; accepted are 0..{_FRAME_BYTES_MAX}"
            )
            return
        try:
            if self._bare:
                self._hear(bytes(data[start:end]), None)
                return
            header = frames.read_header(data, start, end)
            if header.key == API_VERSIONS and self._stage is _Stage.BEGUN:
                self._serve_versions(data, start, end)
                return
            body = self._body(header, data, end)
        except Undecodable as flaw:
            self.violate(str(flaw))
            return
        if header.key == HANDSHAKE:
            self._choose(header, body.mechanism)
        else:
            self._hear(body.auth_bytes, header)

    def _serve_versions(self, data: memoryview, start: int, end: int) -> None:
        self._versions_requests += 1
        if self._versions_requests > _VERSIONS_REQUESTS_MAX:
            self.violate(f"more than {_VERSIONS_REQUESTS_MAX} ApiVersions before a login")
            return
        self._api_versions(data, start, end)

    def _body(self, header: Header, data: memoryview, end: int) -> Any:
        expected = HANDSHAKE if self._stage is _Stage.BEGUN else AUTHENTICATE
        if header.key != expected or self._stage is _Stage.OVER:
            raise Undecodable(f"request {header.key} before a login")
        if not 0 <= header.version <= _VERSIONS_MAX[expected]:
            raise Undecodable(f"request {header.key} in version {header.version}")
        position = header.position
        if frames.flexible_header(header.key, header.version):
            position = frames.skip_tags(data, position, end)
        return codec.decode(header.key, header.version, data[position:end])

    def _choose(self, header: Header, mechanism: str) -> None:
        context = self._context
        offered = [name for name in context.config.sasl_mechanisms if name in MECHANISMS]
        same = self._before is None or self._before.mechanism == mechanism
        chosen = mechanism in offered and same
        error = ErrorCode.none if chosen else ErrorCode.unsupported_sasl_mechanism
        fields = {"error_code": int(error), "mechanisms": offered}
        self._replies.send(codec.encode(HANDSHAKE, header.version, header.correlation_id, fields))
        if not chosen:
            context.access.turned_away(mechanism[:100], "", "the mechanism is not offered")
            self.violate(f"mechanism {mechanism[:100]!r}; offered are {', '.join(offered)}")
            return
        self._mechanism = mechanism
        self._bare = header.version == 0
        self._conversation = MECHANISMS[mechanism](context.broker)
        self._stage = _Stage.MECHANISM_CHOSEN

    def _hear(self, message: bytes, header: Header | None) -> None:
        conversation = self._conversation
        assert conversation is not None, "a mechanism was chosen"
        if len(message) > conversation.bytes_max:
            self._refuse(
                f"a message of {len(message)} bytes; {self._mechanism} accepts "
                f"{conversation.bytes_max}",
                header,
            )
            return
        claimed = conversation.claim(message)
        if claimed is None:
            self._judge(conversation, message, header)
            return
        self._waits = True
        judge = partial(self._judge, conversation, message, header)
        if not self._context.access.attempt(claimed, judge, len(message)):
            self.violate("too many logins of its address wait")
        elif self._waits:
            self._hold()

    def _judge(self, conversation: Conversation, message: bytes, header: Header | None) -> None:
        self._waits = False
        step = None
        try:
            step = conversation.hear(message)
        finally:
            if step is None:
                self._context.access.end_attempt()
        if not step.ready:
            self._hold()
        step.then(lambda done: self._heard(done, header))

    def _heard(self, done: Later[Step], header: Header | None) -> None:
        try:
            step = done.value
        except BrokerError as refusal:
            self._refuse(str(refusal), header)
            return
        access = self._context.access
        if self.over:
            access.end_attempt()
            return
        if step.refusal:
            self._hold()
            delay_ms = self._count_failure(step.refusal)
            self._context.runtime.after(delay_ms, lambda: self._reply(header, step))
            return
        self._reply(header, step)

    def _reply(self, header: Header | None, step: Step) -> None:
        if self.over:
            return
        session = None
        if step.known is not None:
            if self._before is not None and self._before.known.who != step.known.who:
                self._refuse("a login cannot be prolonged by another user", header)
                return
            session = Session(step.known, self._mechanism, self._lifetime_ms(step.known))
        self._answer(header, step.reply, 0 if session is None else session.lifetime_ms)
        if session is not None:
            self.close()
            self._done(session)
        self._context.access.end_attempt()
        self._let_go()

    def _lifetime_ms(self, known: Known) -> int:
        config = self._context.config
        lifetimes = [config.connections_max_reauth_ms] if config.connections_max_reauth_ms else []
        if known.expires_ms >= 0:
            lifetimes.append(max(1, known.expires_ms - self._context.runtime.now_ms()))
        return min(lifetimes, default=0)

    def _answer(self, header: Header | None, reply: bytes, lifetime_ms: int) -> None:
        if header is None:
            self._replies.send(len(reply).to_bytes(4, "big") + reply)
            return
        fields = {"error_message": None, "auth_bytes": reply, "session_lifetime": lifetime_ms}
        self._replies.send(
            codec.encode(AUTHENTICATE, header.version, header.correlation_id, fields)
        )

    def _refuse(self, reason: str, header: Header | None) -> None:
        """Report a failure, later; the exact reason is for the audit only."""
        self._stage = _Stage.OVER
        delay_ms = 0 if self._counted else self._count_failure(reason)
        if self.over:
            return
        self._hold()
        self._context.runtime.after(delay_ms, lambda: self._farewell(header))

    def _count_failure(self, reason: str) -> int:
        """Count and audit this login as failed; returns how long the refusal is held back."""
        self._counted = True
        claimed = "" if self._conversation is None else self._conversation.claimed
        return self._context.access.turned_away(self._mechanism, claimed[:249], reason)

    def _farewell(self, header: Header | None) -> None:
        if self.over:
            return
        if header is not None:
            fields = {
                "error_code": int(ErrorCode.sasl_authentication_failed),
                "error_message": "Authentication failed: the name, or what shall prove it, is "
                f"wrong for {self._mechanism}",
                "auth_bytes": b"",
                "session_lifetime": 0,
            }
            self._replies.send(
                codec.encode(AUTHENTICATE, header.version, header.correlation_id, fields)
            )
        self.violate(f"a login by {self._mechanism} failed")
        self._let_go()

    def violate(self, text: str) -> None:
        """Close the connection, whatever else it may have sent."""
        self.close()
        self._context.metrics.request_errors += 1
        _log.info("%s: %s; the connection is closed", self._context.peer, text)
        self._replies.hang_up()

    def _hold(self) -> None:
        if self._release is None:
            self._release = self._replies.hold()

    def _let_go(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def _too_late(self) -> None:
        self._timer = None
        if not self.over:
            self.violate(f"no login within {self._context.config.login_timeout_ms} ms")
            self._let_go()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
