"""One BlipMQ connection: frames to broker calls and back, in the order they came.

One kernel call splits a read into runs: publishes become a batch, polls are answered from opened
batches, acknowledgements settle many deliveries at once.  Success is silent but keeps its place in
line, so that a PONG says that everything before it is done, and durable where that was asked.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from pentalog import kernels
from pentalog.broker.council import Council
from pentalog.broker.deliveries import Search, Searching, Subscription
from pentalog.kernels import BlipFrames, NumberRun, PublishRun
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later
from pentalog.model.types import Horizon
from pentalog.protocols.blipmq import frames, keys, messages, rights
from pentalog.protocols.blipmq.door import door_of
from pentalog.protocols.blipmq.errors import UNAUTHENTICATED, UNKNOWN_TAG, code_of
from pentalog.protocols.blipmq.forwarding import FORWARDED, Forwarding
from pentalog.protocols.blipmq.frames import FRAME_BYTES_MAX, ID_BYTES, Frame, FrameType
from pentalog.protocols.blipmq.lookups import Asking, Item, Next
from pentalog.protocols.blipmq.messages import Nack
from pentalog.protocols.blipmq.parked import Parked
from pentalog.protocols.blipmq.publishing import Publishing
from pentalog.protocols.blipmq.records import BATCH_BYTES_MAX, LARGE_BYTES, Routes, deliver
from pentalog.session import Context, Replies

_log: Final = logging.getLogger(__name__)

_PARKED_BYTES_MAX: Final = 4 << 20
"""Deliveries made at once for polls that had to wait; the others find nothing, and poll again."""
_PARKED_MAX: Final = 64
"""Runs of polls that may wait; further ones find nothing."""
_STRETCHES_PER_TURN: Final = 16
"""Deliveries made at once for the same, as each may be of another partition."""
_FRAMES_PER_TURN: Final = 500
"""Frames served one by one in a turn; those after them are served in the next one."""
_CAUTIOUS_BYTES: Final = 32 << 10
_TOPICS_PER_TURN: Final = 4
"""Topics made in a turn because they were named: each is a directory and some files."""
_TAGS_PER_TURN: Final = 8_192
"""Acknowledgements settled in a turn."""
_PAUSE_MS: Final = 0
_UNWRITTEN_BYTES_MAX: Final = 8 << 20
"""Of one connection on their way to a cluster; whoever brings more is not read meanwhile."""


class BlipmqSession:
    """Serves one connection."""

    def __init__(self, context: Context, replies: Replies) -> None:
        self.wanted = 0
        self._context = context
        self._replies = replies
        self._subscriptions = context.broker.subscriptions
        self._routes = Routes(
            context.broker.topics,
            context.access,
            context.usage,
            create=context.config.auto_create_topics,
            number=next(door_of(context.broker).numbers),
        )
        self._frame_bytes_max = min(FRAME_BYTES_MAX, context.config.frame_bytes_max)
        self._greeted = False
        self._authenticated = False
        self._token_id = ""
        """The delegation token it logged in by."""
        self._leave: Callable[[], None] | None = None
        """Takes back that this login ends with the key it was made by."""
        self._ended = False
        self._asking: Asking | None = None
        """Where the broker does not know everything by itself."""
        if not context.broker.knowledge.current:
            self._asking = Asking(context, replies)
        self._forwarding = Forwarding(context, replies)
        self._by_gateway = False
        self._publishing = Publishing(
            context, replies, self._routes, frame_bytes_max=self._frame_bytes_max
        )
        self._login: Callable[[Council], bytes] = lambda _: b""
        self._parked: deque[Parked] = deque()
        self._cautious = False
        """Not everything that had come was served in the last turn."""
        timeout_ms = context.config.login_timeout_ms
        self._waiting_for_login = context.runtime.after(timeout_ms, self._give_up)

    def receive(self, data: memoryview) -> int:
        if self._ended:
            return len(data)
        if self._forwarding.busy:
            self._forwarding.room()
            return 0
        if self._replies.full:
            return 0
        lapsed = self._lapsed()
        is_stranger = not self._authenticated
        split, end = self._split(data, self._forwarding.served())
        self.wanted = split.wanted if end == len(data) else 0
        metrics, replies = self._context.metrics, self._replies
        left = _FRAMES_PER_TURN
        made_max = self._routes.made + _TOPICS_PER_TURN
        for item in split.items:
            left -= 1
            if not left or self._routes.made >= made_max:
                # Served in a moment, when others have had their turn.
                replies.mute(_PAUSE_MS)
            # The first is served in any case: to split a large frame may take all of a turn.
            stops = left < _FRAMES_PER_TURN - 1 and replies.full
            self._cautious = self._cautious or stops
            if not isinstance(item, PublishRun | NumberRun):
                begin, behind = item[0] - 4, item[1]
                if stops:
                    return begin
                frame = frames.read(data, *item)
                ready = self._ready(frame, frame.correlation, data, begin, behind)
                if ready is None:
                    return begin
                metrics.requests += 1
                if ready:
                    self._serve(frame)
                continue
            if stops:
                return item.start
            ready = self._ready(item, item.correlations, data, item.start, item.end)
            if ready is None:
                return item.start
            if not ready:
                metrics.requests += len(item.correlations) // ID_BYTES
            elif (stopped := self._serve_run(item, data)) >= 0:
                return stopped
        if split.refused and is_stranger and self._authenticated:
            # A large frame came together with the login: it is looked at once more.
            replies.mute(_PAUSE_MS)
            return split.used
        if split.refused and replies.full:
            return split.used  # it is refused after those before it, some of which may wait
        if split.refused:
            self._violation(split.refused)
            return len(data)
        if lapsed:
            self._give_up()
        self._cautious = end < len(data)
        if self._cautious:
            replies.mute(_PAUSE_MS)
        return split.used

    def _split(self, data: memoryview, start: int) -> tuple[BlipFrames, int]:
        """(frames, up to where was looked for them).

        Not far, if the last turn had to stop: what was split and not served is split again.
        """
        stranger = not self._authenticated
        split = partial(
            kernels.split_blipmq,
            timestamp_ms=self._context.runtime.now_ms(),
            frame_bytes_max=frames.LOGIN_BYTES_MAX if stranger else self._frame_bytes_max,
            batch_bytes_max=BATCH_BYTES_MAX,
        )
        end = min(len(data), start + _CAUTIOUS_BYTES) if self._cautious else len(data)
        found = split(data, start, end)
        if found.used == start and end < len(data):
            end = len(data)  # one frame is larger than that
            found = split(data, start, end)
        return found, end

    def _serve_run(self, run: PublishRun | NumberRun, data: memoryview) -> int:
        """Serve a run; returns where to go on in a later turn, or -1 if all of it is served."""
        count = len(run.correlations) // ID_BYTES
        if not self._authenticated:
            self._refuse(run.correlations, 401, UNAUTHENTICATED)
        elif isinstance(run, PublishRun):
            if len(run.batch) > LARGE_BYTES and run.facts.records == 1:
                self._publish_later(run)
            elif (reached := self._publishing.publish(run, data)) < run.end:
                self._replies.mute(_PAUSE_MS)
                return reached
        elif run.kind == FrameType.ACK:
            count = min(count, _TAGS_PER_TURN)
            self._acknowledge(run.subscription, run.correlations[: count * ID_BYTES])
            if count * ID_BYTES < len(run.correlations):
                self._replies.mute(_PAUSE_MS)
        else:
            count = self._poll(run)
        self._context.metrics.requests += count
        if count * ID_BYTES < len(run.correlations):
            return run.start + count * frames.NUMBER_FRAME_BYTES
        return -1

    def close(self) -> None:
        self._ended = True
        self._context.access.cancel_attempt()
        self._waiting_for_login.cancel()
        if self._leave is not None:
            self._leave()
        self._forwarding.close()
        for parked in self._parked:
            if parked.waiting is not None:
                parked.waiting.cancel()
        self._parked.clear()

    def _ready(
        self, item: Item, correlations: bytes, data: memoryview, start: int, end: int
    ) -> bool | None:
        """May this be served now?  None: it comes again.  False: it has been answered."""
        if self._asking is None or not self._authenticated:
            return True
        publishing = self._publishing
        if isinstance(item, PublishRun) and publishing.written_bytes >= _UNWRITTEN_BYTES_MAX:
            if self._asking.must_wait(publishing.written.values()):
                return None
            publishing.written_bytes = 0
        if isinstance(item, PublishRun) and self._routes.knows(item.topic):
            return True
        try:
            found = self._asking.next(item)
        except BrokerError as refusal:
            self._refuse(correlations, code_of(refusal), str(refusal))
            return False
        if found is not Next.FORWARD:
            self._forwarding.served_here()
            return None if found is Next.AGAIN else True
        council = self._context.broker.council
        if self._by_gateway and council.owner != council.me:
            self._give_up()  # it looks for the owner anew, and nothing is forwarded twice
            return None
        if self._asking.must_wait(publishing.written.values()):
            return None
        publishing.written.clear()
        self._forwarding.forward(bytes(data[start:end]), correlations, self._login(council))
        return None if self._forwarding.busy or not self._forwarding.served() else False

    def _serve(self, frame: Frame) -> None:
        try:
            if frame.kind is FrameType.HELLO:
                self._hello(frame)
            elif frame.kind is FrameType.AUTH:
                self._authenticate(frame)
            elif not self._authenticated:
                raise Nack(401, UNAUTHENTICATED)
            elif frame.kind is FrameType.PING:
                self._replies.send(frames.pong(frame.correlation))
            elif frame.kind is FrameType.SUBSCRIBE:
                self._subscribe(frame)
            elif frame.kind is FrameType.PUBLISH:
                messages.check_publish(frame.payload)
            elif frame.kind in (FrameType.POLL, FrameType.ACK):
                messages.check_number(frame.payload, frame.kind.name)
        except Nack as flaw:
            self._refuse(frame.correlation, flaw.code, flaw.text)

    def _hello(self, frame: Frame) -> None:
        if self._greeted:
            raise Nack(400, "HELLO already performed")
        messages.check_hello(frame.payload)
        self._greeted = True
        self._by_gateway = frame.correlation == FORWARDED
        self._replies.send(frames.ack(frame.correlation, 0))

    def _authenticate(self, frame: Frame) -> None:
        if not self._greeted:
            raise Nack(400, "HELLO not performed")
        if self._authenticated:
            raise Nack(400, "already authenticated")
        if self._token_id:
            raise Nack(401, "token expired: connect again")
        key = messages.read_auth(frame.payload)
        begun = False
        release: Callable[[], None] | None = None

        def log_in() -> None:
            nonlocal begun
            begun = True
            if release is not None:
                release()
            if self._ended:
                self._context.access.end_attempt()
            else:
                self._log_in(frame.correlation, key)

        if not self._context.access.attempt("", log_in, len(key)):
            self._give_up()
        elif not begun:
            release = self._replies.hold()

    def _log_in(self, correlation: bytes, key: str) -> None:
        access = self._context.access
        owner = keys.owner(key, self._context)
        if owner is not None:
            self._authenticated = True
            self._login = partial(keys.forwarded, key, owner)
            self._token_id = owner.token_id
            if owner.proof is not None:
                self._leave = self._context.broker.users.logins.enter(owner.proof, self._shut)
            self._waiting_for_login.cancel()
            access.become(owner.who, "API key", by_token=bool(owner.token_id))
            self._replies.send(frames.ack(correlation, 0))
            return
        delay_ms = access.turned_away("API key", "", "unknown key")
        self._hold_back(delay_ms, lambda: self._refuse(correlation, 401, "invalid API key"))

    def _lapsed(self) -> bool:
        """Is the token it logged in by good no more?  Then nothing is served any more."""
        if not self._token_id:
            return False
        if self._authenticated and self._context.broker.tokens.get(self._token_id) is None:
            self._authenticated = False
            _log.info("%s: its token has expired; the connection is closed", self._context.peer)
        return not self._authenticated

    def _shut(self) -> None:
        """The key it logged in by was taken back."""
        self._leave = None
        self._authenticated = False
        self._context.access.shut()
        _log.info("%s: its key was taken back; the connection is closed", self._context.peer)
        self._give_up()

    def _give_up(self) -> None:
        """Nobody has logged in here in time, or for as long."""
        self._ended = True
        self._replies.hang_up()

    def _hold_back(self, delay_ms: int, run: Callable[[], None]) -> None:
        """Go on after a while, in which nothing is served."""
        if not delay_ms:
            run()
            return
        release = self._replies.hold()

        def go_on() -> None:
            # What is held is served in a later turn, so behind this.
            release()
            if not self._ended:
                run()

        self._context.runtime.after(delay_ms, go_on)

    def _subscribe(self, frame: Frame) -> None:
        asked = messages.read_subscribe(frame.payload)
        try:
            rights.check(self._context.access, frame.kind, asked.topic)
            self._routes.require(asked.topic)
            access, leased = self._context.access, asked.qos == 1
            owner, payer = str(access.who), keys.charged(access)
            later = self._subscriptions.open(asked.topic, leased=leased, owner=owner, charged=payer)
        except BrokerError as refusal:
            raise Nack(code_of(refusal), f"cannot subscribe: {refusal}") from refusal
        if later.ready:
            self._replies.send(self._subscribed(frame.correlation, later))
            return
        place = self._replies.place()
        later.then(lambda opened: place.fill(self._subscribed(frame.correlation, opened)))

    def _subscribed(self, correlation: bytes, opened: Later[int]) -> bytes:
        try:
            return frames.ack(correlation, opened.value)
        except BrokerError as refusal:
            return self._nacks(correlation, code_of(refusal), f"cannot subscribe: {refusal}")

    def _publish_later(self, run: PublishRun) -> None:
        """Append a large message in a turn of its own; nothing is served before that."""
        release = self._replies.hold()

        def append() -> None:
            # What is held is served in a later turn, so behind this.
            release()
            if not self._ended:
                self._publishing.publish(run, memoryview(b""))

        self._context.runtime.soon(append)

    def _acknowledge(self, number: int, tags: bytes) -> None:
        subscription = self._find(number)
        unknown = tags
        if subscription is not None:
            if not self._may(FrameType.ACK, subscription, tags):
                return
            if 0 < len(self._parked) < _PARKED_MAX:
                self._park(subscription, FrameType.ACK, tags)
                return
            unknown = subscription.acknowledge(tags)
        if unknown:
            self._refuse(unknown, 404, UNKNOWN_TAG)

    def _find(self, number: int) -> Subscription | None:
        """The subscription of this number; another principal's is answered like one that is not.

        One that an older version left without an owner is adopted by the first who may read.
        """
        subscription = self._subscriptions.get(number)
        if subscription is None or rights.owns(self._context.access, subscription):
            return subscription
        return None

    def _may(self, kind: FrameType, subscription: Subscription, correlations: bytes) -> bool:
        """May this still be done with a subscription?  If not, that is answered."""
        try:
            rights.check(self._context.access, kind, subscription.topic)
        except BrokerError as refusal:
            self._refuse(correlations, code_of(refusal), str(refusal))
            return False
        return True

    def _poll(self, run: NumberRun) -> int:
        """How many of the polls are answered, or will be."""
        subscription = self._find(run.subscription)
        asked = len(run.correlations) // ID_BYTES
        if subscription is None or not self._may(FrameType.POLL, subscription, run.correlations):
            return asked
        if self._parked:
            if len(self._parked) < _PARKED_MAX:
                self._park(subscription, FrameType.POLL, run.correlations)
            return asked
        polls = memoryview(run.correlations)
        while polls:
            if len(polls) < len(run.correlations) and self._replies.full:
                break
            try:
                found = self._deliver(subscription, polls)
            except BrokerError as refusal:
                self._refuse(bytes(polls), code_of(refusal), f"cannot deliver: {refusal}")
                return asked
            if isinstance(found, Later):
                self._park(subscription, FrameType.POLL, bytes(polls), found)
                return asked
            if found is None:
                if subscription.underway():
                    self._park(subscription, FrameType.POLL, bytes(polls))
                return asked
            answer, used = found
            if answer:
                self._replies.send(answer)
            polls = polls[used * ID_BYTES :]
        return asked - len(polls) // ID_BYTES

    def _deliver(
        self, subscription: Subscription, polls: memoryview, search: Search | None = None
    ) -> tuple[bytes, int] | Later[None] | None:
        """(frames, polls answered by them); None if there is nothing to deliver."""
        found = deliver(subscription, polls, search)
        if isinstance(found, tuple):
            self._context.metrics.sent_records += found[1]
        return found

    def _park(
        self,
        subscription: Subscription,
        kind: FrameType,
        correlations: bytes,
        disk: Later[None] | None = None,
    ) -> None:
        parked = Parked(self._replies.place(), subscription, kind, correlations)
        self._parked.append(parked)
        if len(self._parked) == 1:
            self._wait(parked, disk)

    def _wait(self, parked: Parked, disk: Later[None] | None) -> None:
        """Go on with the first in line when the disk has answered."""
        if isinstance(disk, Searching):
            parked.search = disk.search
        if disk is not None:
            disk.then(lambda _: self._go_on(parked))
            return
        if parked.targets is None:
            parked.targets = parked.subscription.underway()
        log = self._context.broker.log
        parked.waiting = log.wait(
            {at: log.marks(at).durable for at in parked.targets},
            bytes_min=1,
            horizon=Horizon.DURABLE,
            timeout_ms=0,
        )
        parked.waiting.then(lambda moved: self._go_on(parked, moved=bool(moved.value)))

    def _go_on(self, parked: Parked, *, moved: bool = True) -> None:
        """Serve the first in line once memory for its answers is reserved."""
        if self._ended or not self._parked or self._parked[0] is not parked:
            return
        reserved = self._replies.reserve(_PARKED_BYTES_MAX)
        reserved.then(partial(self._reserved, parked, moved))

    def _reserved(self, parked: Parked, moved: bool, reserved: Later[Callable[[], None]]) -> None:
        try:
            self._serve_first(parked, moved=moved)
        finally:
            reserved.value()

    def _serve_first(self, parked: Parked, *, moved: bool) -> None:
        if self._ended or not self._parked or self._parked[0] is not parked:
            return
        try:
            if not self._serve_parked(parked, moved=moved):
                return
        except BrokerError as refusal:
            parked.answers.append(self._nacks(parked.rest, code_of(refusal), str(refusal)))
        self._parked.popleft()
        parked.place.fill(*parked.answers)
        if self._parked:
            # In a turn of its own: a long line of polls is no deep stack of calls.
            following = self._parked[0]
            self._context.runtime.soon(lambda: self._go_on(following))

    def _serve_parked(self, parked: Parked, *, moved: bool) -> bool:
        """Serve what had to wait, unless the right was revoked; False: it waits again."""
        if self._lapsed():
            parked.answers.append(self._nacks(parked.rest, 401, UNAUTHENTICATED))
            return True
        rights.check(self._context.access, parked.kind, parked.subscription.topic)
        if parked.kind is FrameType.ACK:
            unknown = parked.subscription.acknowledge(parked.rest)
            if unknown:
                parked.answers.append(self._nacks(unknown, 404, UNKNOWN_TAG))
            return True
        try:
            return self._retry(parked, moved=moved)
        except BrokerError as refusal:
            text = f"cannot deliver: {refusal}"
            parked.answers.append(self._nacks(parked.rest, code_of(refusal), text))
            return True

    def _retry(self, parked: Parked, *, moved: bool) -> bool:
        """Answer polls that waited; False if they wait again."""
        left = _STRETCHES_PER_TURN
        while parked.rest and sum(map(len, parked.answers)) < _PARKED_BYTES_MAX:
            left -= 1
            if left < 0:
                self._go_on_later(parked)
                return False
            search, parked.search = parked.search, None
            found = self._deliver(parked.subscription, memoryview(parked.rest), search)
            if isinstance(found, Later):
                self._wait(parked, found)
                return False
            if found is None:
                if moved and self._unmet(parked):
                    self._wait(parked, None)
                    return False
                break
            answer, used = found
            parked.answers.append(answer)
            parked.rest = parked.rest[used * ID_BYTES :]
        return True

    def _go_on_later(self, parked: Parked) -> None:
        """Continue with the first in line when other clients have been served."""

        def again() -> Iterator[None]:
            self._go_on(parked)
            yield

        def done(error: Exception | None) -> None:
            if error is not None:
                self._replies.hang_up()
                raise error

        def run() -> None:
            self._context.slices.run(again(), done)

        self._context.runtime.soon(run)

    def _unmet(self, parked: Parked) -> bool:
        if parked.targets is None:
            parked.targets = parked.subscription.underway()
        log = self._context.broker.log
        return any(log.marks(at).durable < end for at, end in parked.targets.items())

    def _refuse(self, correlations: bytes, code: int, text: str) -> None:
        self._replies.send(self._nacks(correlations, code, text))

    def _nacks(self, correlations: bytes, code: int, text: str) -> bytes:
        self._context.metrics.request_errors += len(correlations) // ID_BYTES
        return frames.nacks(correlations, code, text)

    def _violation(self, refused: int) -> None:
        what = "length" if refused == kernels.REFUSED_LENGTH else "type"
        self._context.metrics.request_errors += 1
        _log.info(
            "%s: a frame of a %s that BlipMQ does not have; the connection is closed",
            self._context.peer,
            what,
        )
        self._ended = True
        self._replies.hang_up()
