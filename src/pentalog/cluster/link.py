"""One connection to one node of the cluster: requests leave at once and are answered in order.

It opens when the first request wants to leave and opens again, after a pause, when the next one
does.  What was under way when it broke is refused with `Lost`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pentalog.clients.kafka import messages
from pentalog.clients.kafka.authentication import conversation
from pentalog.clients.kafka.errors import KafkaFailed
from pentalog.cluster.refusals import Lost, Trouble
from pentalog.cluster.steps import Steps, begin
from pentalog.cluster.wire import Bytes, Dialer, Wire
from pentalog.model.errors import BrokerError, Unauthorized, UnsupportedVersion
from pentalog.model.later import Later
from pentalog.runtime import Runtime, Timer

CLIENT_ID: Final = b"pentalog"

_LENGTH: Final = struct.Struct(">I")
_CORRELATION: Final = struct.Struct(">i")
_ANSWER_BYTES_MAX: Final = 256 << 20
_SMALL_BYTES: Final = 64 << 10
_PAUSE_FIRST_MS: Final = 50
_PAUSE_MS_MAX: Final = 1_000
_PROMPT_MS: Final = 2_000
_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
_OFFERED: Final = {messages.API_VERSIONS: (0, 0)}


class Login(NamedTuple):
    mechanism: str
    user: str
    password: str


class _Request:
    """One request, from being asked to its answer."""

    __slots__ = ("correlation_id", "encode", "key", "later", "read", "sent_s", "version")

    def __init__(
        self,
        key: int,
        version: int,
        encode: Callable[[int, int], Sequence[Bytes]],
        read: Callable[[int, memoryview], Any],
    ) -> None:
        self.key = key
        self.version = version
        """-1: the newest that both sides know."""
        self.encode = encode
        self.read = read
        self.later: Later[Any] = Later()
        self.correlation_id = 0
        self.sent_s = 0.0


class Link:
    """Implements `wire.Receiver`."""

    def __init__(
        self,
        dialer: Dialer,
        runtime: Runtime,
        host: str,
        port: int,
        *,
        timeout_ms: int,
        login: Login | None = None,
    ) -> None:
        self.name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._address = (host, port)
        self._dialer = dialer
        self._runtime = runtime
        self._timeout_ms = timeout_ms
        self._login = login
        self._wire: Wire | None = None
        self._versions: Mapping[int, tuple[int, int]] = _OFFERED
        self._usable = False
        self._closed = False
        self._correlation_id = 0
        self._waiting: deque[_Request] = deque()
        self._flying: deque[_Request] = deque()
        self._incoming = bytearray(_SMALL_BYTES)
        self._filled = 0
        self._large = False
        """The incoming bytes are one answer, too large for the usual buffer."""
        self._pause_ms = 0
        self._muted = False
        self._redial: Timer | None = None
        self._watch: Timer | None = None

    @property
    def prompt(self) -> bool:
        """It is open, and no answer has been waited for for long."""
        return self._usable and self._silent_ms() < _PROMPT_MS

    def ask(self, key: int, fields: Mapping[str, Any]) -> Later[Any]:
        """Send a request made of plain values; its decoded answer."""
        return self._take(_request(key, fields))

    def exchange(self, key: int, version: int, body: Sequence[Bytes]) -> Later[memoryview]:
        """Send a request written by hand; the bytes of its answer behind the header."""

        def encode(version: int, correlation_id: int) -> Sequence[Bytes]:
            return (messages.head(key, version, correlation_id, CLIENT_ID), *body)

        return self._take(_Request(key, version, encode, lambda _, data: data[_CORRELATION.size :]))

    def mute(self, delay_ms: int) -> None:
        """The node asks for a pause: requests wait here meanwhile."""
        if delay_ms > 0 and not self._muted:
            self._muted = True
            self._runtime.after(delay_ms, self._unmute)

    def close(self) -> None:
        """For good: what is under way is refused."""
        self._closed = True
        self._fail("the gateway stops")

    # The wire's side

    def opened(self) -> None:
        hello = _request(messages.API_VERSIONS, {}, 0)
        hello.later.then(self._greeted)
        self._send(hello)

    def buffer(self) -> memoryview:
        return memoryview(self._incoming)[self._filled :]

    def received(self, size: int) -> None:
        self._filled += size
        if self._large:
            if self._filled == len(self._incoming):
                answer = self._incoming
                self._start_over()
                self._answered(memoryview(answer))
            return
        used = 0
        incoming, filled = self._incoming, self._filled
        while self._wire is not None and filled - used >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(incoming, used)
            if not _CORRELATION.size <= size <= _ANSWER_BYTES_MAX:
                self._fail(f"{self.name} announced an answer of {size} bytes: not a Kafka node?")
                return
            start = used + _LENGTH.size
            if start + size > filled:
                if start + size - used > len(incoming):
                    self._receive_large(size, memoryview(incoming)[start:filled])
                    return
                break
            used = start + size
            self._answered(memoryview(bytes(memoryview(incoming)[start:used])))
        if self._wire is not None:
            incoming[: filled - used] = incoming[used:filled]
            self._filled = filled - used

    def _receive_large(self, size: int, beginning: memoryview) -> None:
        """The rest of this answer goes where it stays."""
        self._incoming = bytearray(size)
        self._incoming[: len(beginning)] = beginning
        self._filled = len(beginning)
        self._large = True

    def _start_over(self) -> None:
        self._incoming = bytearray(_SMALL_BYTES)
        self._filled = 0
        self._large = False

    def lost(self, why: str) -> None:
        self._wire = None
        self._fail(f"{self.name}: {why}")

    # Our side

    def _take(self, request: _Request) -> Later[Any]:
        if self._closed:
            request.later.refuse(Lost("the gateway stops"))
        elif self._usable and not self._muted:
            self._send(request)
        else:
            self._waiting.append(request)
            self._dial()
        return request.later

    def _dial(self) -> None:
        if self._wire is not None or self._redial is not None:
            return
        self._redial = self._runtime.after(self._pause_ms, self._dial_now)

    def _dial_now(self) -> None:
        self._redial = None
        if self._closed or not self._waiting:
            return
        self._pause_ms = min(max(2 * self._pause_ms, _PAUSE_FIRST_MS), _PAUSE_MS_MAX)
        self._wire = self._dialer.dial(*self._address, self)
        self._arm()

    def _greeted(self, hello: Later[Any]) -> None:
        try:
            offered = hello.value.api_keys
        except BrokerError:
            return  # the connection broke, and everybody has been told
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in offered}
        if self._login is None:
            self._start_serving()
        else:
            begin(self._log_in(self._login)).then(self._logged_in)

    def _log_in(self, login: Login) -> Steps[None]:
        answer = yield self._ask_now(_SASL_HANDSHAKE, {"mechanism": login.mechanism})
        doing = f"{self.name} refuses the login by {login.mechanism}"
        if answer.error_code:
            offered = ", ".join(answer.mechanisms)
            raise Unauthorized(f"{doing}; it offers {offered or 'none'}: see engine_mechanism")
        tokens = conversation(*login)
        try:
            token = next(tokens)
            while True:
                answer = yield self._ask_now(_SASL_AUTHENTICATE, {"auth_bytes": token})
                if answer.error_code:
                    said = answer.error_message or answer.error_code.name
                    raise Unauthorized(f"{doing}: {said}; see engine_user and engine_password")
                token = tokens.send(bytes(answer.auth_bytes))
        except StopIteration:
            return
        except KafkaFailed as flaw:
            raise Unauthorized(f"{doing}: {flaw}") from flaw

    def _ask_now(self, key: int, fields: Mapping[str, Any]) -> Later[Any]:
        """Before anybody else may."""
        request = _request(key, fields)
        self._send(request)
        return request.later

    def _logged_in(self, outcome: Later[None]) -> None:
        try:
            outcome.check()
        except Trouble:
            return  # the connection broke, and everybody has been told
        except BrokerError as refusal:
            self._fail(str(refusal), refusal)
        else:
            self._start_serving()

    def _start_serving(self) -> None:
        self._usable = True
        self._pause_ms = 0
        self._flush()

    def _flush(self) -> None:
        while self._waiting and self._usable and not self._muted:
            self._send(self._waiting.popleft())

    def _unmute(self) -> None:
        self._muted = False
        self._flush()

    def _send(self, request: _Request) -> None:
        flaw = self._settle_version(request)
        if flaw is not None:
            request.later.refuse(UnsupportedVersion(flaw))
            return
        assert self._wire is not None
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        request.correlation_id = self._correlation_id
        request.sent_s = self._runtime.monotonic()
        head, *body = request.encode(request.version, request.correlation_id)
        size = len(head) + sum(map(len, body))
        self._flying.append(request)
        self._wire.send((_LENGTH.pack(size) + head, *body))
        self._arm()

    def _settle_version(self, request: _Request) -> str | None:
        least, most = self._versions.get(request.key, (0, -1))
        if request.version >= 0:
            ours_min = ours_max = request.version
        else:
            ours_min, ours_max = messages.VERSIONS[request.key]
            request.version = min(ours_max, most)
        if max(ours_min, least) <= request.version <= min(ours_max, most):
            return None
        offered = f"{least}..{most}" if most >= 0 else "nothing"
        return (
            f"{self.name} offers {offered} of {messages.NAMES[request.key]}; needed is a version "
            f"in {ours_min}..{ours_max}: use a newer cluster"
        )

    def _answered(self, data: memoryview) -> None:
        if not self._flying:
            self._fail(f"{self.name} answered what nobody had asked")
            return
        request = self._flying.popleft()
        (correlation_id,) = _CORRELATION.unpack_from(data)
        if correlation_id != request.correlation_id:
            self._flying.appendleft(request)
            self._fail(f"{self.name} answered another request than the one it was sent")
            return
        try:
            value = request.read(request.version, data)
        except Exception as flaw:  # whatever a decoder makes of bytes that are no answer
            self._flying.appendleft(request)
            self._fail(f"{self.name} sent an answer that cannot be read: {flaw!r}")
            return
        throttled = getattr(value, "throttle_time", None)
        if throttled:
            self.mute(int(throttled.total_seconds() * 1000))
        request.later.fill(value)

    def _fail(self, why: str, refusal: BrokerError | None = None) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        self._usable = False
        self._versions = _OFFERED
        self._start_over()
        for timer in (self._redial, self._watch):
            if timer is not None:
                timer.cancel()
        self._redial = self._watch = None
        refused = [*self._flying, *self._waiting]
        self._flying.clear()
        self._waiting.clear()
        for request in refused:
            request.later.refuse(Lost(why) if refusal is None else refusal)

    def _silent_ms(self) -> float:
        """How long the first of those that are not answered has waited."""
        if not self._flying:
            return 0
        return (self._runtime.monotonic() - self._flying[0].sent_s) * 1000

    def _arm(self) -> None:
        if self._watch is None:
            left_ms = self._timeout_ms - self._silent_ms()
            self._watch = self._runtime.after(max(left_ms, 1), self._look)

    def _look(self) -> None:
        self._watch = None
        if not self._usable or self._silent_ms() >= self._timeout_ms:
            self._fail(f"{self.name} has not answered for {self._timeout_ms} ms")
        elif self._flying:
            self._arm()


def _request(key: int, fields: Mapping[str, Any], version: int = -1) -> _Request:
    def encode(version: int, correlation_id: int) -> Sequence[Bytes]:
        return (messages.request(key, version, correlation_id, CLIENT_ID, fields),)

    def read(version: int, data: memoryview) -> Any:
        return messages.answer(key, version, bytes(data))

    return _Request(key, version, encode, read)
