"""The gateways' own membership: an ordinary consumer group, whose one partition has an owner.

Whoever is given the partition owns the state.  It stops being the owner at once when the
coordinator says so, and also when the coordinator has said nothing for so long that it might soon
give the partition to another: no two gateways own it at the same time.  What an owner has sent
before and is still on its way is fenced by `state_topic`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pentalog.broker.council import Peer
from pentalog.broker.upstream import Caller, Downstream, Upstream
from pentalog.clients.kafka import messages
from pentalog.cluster.agreement import (
    Agreement,
    Candidate,
    agree,
    assignment,
    read_assignment,
    read_subscription,
    subscription,
)
from pentalog.cluster.fleet import REQUEST_TIMEOUT_MS, Fleet
from pentalog.cluster.link import Link
from pentalog.cluster.refusals import Trouble, check
from pentalog.cluster.steps import Steps, begin
from pentalog.model.errors import BrokerError
from pentalog.model.kio_schemas import ErrorCode
from pentalog.model.later import Later
from pentalog.runtime import Runtime, Timer

_log: Final = logging.getLogger(__name__)

GROUP: Final = "pentalog-gateways"
SESSION_MS: Final = 6_000
"""A gateway that is silent for this long is a member no more; the least that Kafka allows."""
MARGIN_MS: Final = 1_500
"""So much earlier it stops being the owner by itself."""
BEAT_MS: Final = 1_000

_FIND_COORDINATOR: Final = 10
_JOIN_GROUP: Final = 11
_HEARTBEAT: Final = 12
_LEAVE_GROUP: Final = 13
_SYNC_GROUP: Final = 14
_GROUP_KEY: Final = 0
_PROTOCOL_TYPE: Final = "consumer"
_PROTOCOL: Final = "pentalog"
_JOINING: Final = "joining"
_BEATING: Final = "beating"
"""Purposes of connections: a node that holds back the answer to a join serves nothing else on its
connection, and heartbeats must be answered meanwhile."""
_BEAT_TIMEOUT_MS: Final = 2_000
"""A coordinator that says nothing for so long is asked on another connection, while what it said
before can still be trusted."""
_JOIN_TRIES: Final = 10
_LEAVE_MS: Final = 1_000


class ClusterCouncil:
    """Implements the port's `Council`."""

    def __init__(self, fleet: Fleet, runtime: Runtime) -> None:
        self.generation = -1
        self.me: Peer | None = None
        self.secret = ""
        self.caller: Caller | None = None
        """How the others are reached; None: they are not."""
        self._nodes = fleet
        self._runtime = runtime
        self._agreed = Agreement((), "")
        self._mine = False
        self._owned_since = -1
        self._trusted_until_s = 0.0
        """Up to then nobody else can have been given what was given to us."""
        self._member_id = ""
        self._seated = False
        """A member of the present generation."""
        self._joining = False
        self._beating = False
        self._coordinator_id: int | None = None
        self._complaint = ""
        self._closed = False
        self._beat_timer: Timer | None = None
        self._end_timer: Timer | None = None
        self._watchers: dict[object, Callable[[], None]] = {}

    # What is agreed

    @property
    def fleet(self) -> Sequence[Peer]:
        if self._agreed.fleet:
            return self._agreed.fleet
        return () if self.me is None else (self.me,)

    @property
    def owned(self) -> bool:
        return self._mine and self._runtime.monotonic() < self._trusted_until_s

    @property
    def owner(self) -> Peer | None:
        if self._mine:
            return self.me if self.owned else None
        owner_id = self._agreed.owner_id
        return next((peer for peer in self._agreed.fleet if peer.gateway_id == owner_id), None)

    def watch(self, run: Callable[[], None]) -> Callable[[], None]:
        key = object()
        self._watchers[key] = run
        return lambda: self._watchers.pop(key, None) and None

    def call(self, peer: Peer, door: str, caller: Downstream) -> Upstream | None:
        name = peer.listener(door)
        if name is None or self.caller is None:
            return None
        return self.caller.call(name, *peer.addresses[name], caller)

    # Coming and going

    def open(self, gateway_id: str, addresses: Mapping[str, tuple[str, int]]) -> None:
        """Take a seat, and keep it until closed."""
        self.me = Peer(gateway_id, 0, addresses)
        self._beat()

    def close(self) -> Later[None]:
        """Leave; ready when the others can know, or after a second."""
        gone: Later[None] = Later()
        if self._closed or self.me is None:
            self._closed = True
            return Later.now(None)
        self._closed = True
        for timer in (self._beat_timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        self._lose()

        def done(_: Any = None) -> None:
            patience.cancel()
            if not gone.ready:
                gone.fill(None)

        patience = self._runtime.after(_LEAVE_MS, done)
        begin(self._leave()).then(done)
        return gone

    def _leave(self) -> Steps[None]:
        if not self._member_id:
            return
        member = {"member_id": self._member_id, "group_instance_id": None}
        link = yield from self._coordinator(_BEATING)
        yield link.ask(_LEAVE_GROUP, {"group_id": GROUP, "members": [member]})

    # Beating

    def _beat(self) -> None:
        if self._closed:
            return
        self._beat_timer = self._runtime.after(BEAT_MS, self._beat)
        if not self._seated:
            self._join()
        if self._member_id and self.generation >= 0 and not self._beating:
            self._beating = True
            begin(self._heartbeat()).then(self._beaten)

    def _beaten(self, outcome: Later[None]) -> None:
        self._beating = False
        try:
            outcome.check()
        except BrokerError as refusal:
            self._complain(refusal)

    def _heartbeat(self) -> Steps[None]:
        who = member_id, generation = self._member_id, self.generation
        link = yield from self._coordinator(_BEATING)
        sent_s = self._runtime.monotonic()
        fields = {"group_id": GROUP, "generation_id": generation, "member_id": member_id}
        answer = yield link.ask(_HEARTBEAT, fields)
        code = answer.error_code
        if self._closed or who != (self._member_id, self.generation):
            return  # agreed anew meanwhile
        if code in (ErrorCode.none, ErrorCode.rebalance_in_progress):
            self._trust(sent_s)
            if code:
                self._join()
        elif code is ErrorCode.illegal_generation:
            # While joining, the new generation may have begun, and we be told in a moment.
            if not self._joining:
                self._lose()
                self._join()
        elif code in _EXPELLED:
            self._expelled()
            self._join()
        else:
            check("telling the other gateways that this one is there", code)

    def _trust(self, sent_s: float) -> None:
        """The coordinator has heard of us at this time, or later."""
        self._trusted_until_s = sent_s + (SESSION_MS - MARGIN_MS) / 1000
        if self._mine and self._end_timer is None:
            self._watch_end()

    def _watch_end(self) -> None:
        self._end_timer = None
        left_ms = (self._trusted_until_s - self._runtime.monotonic()) * 1000
        if not self._mine or self._closed:
            return
        if left_ms > 0:
            self._end_timer = self._runtime.after(left_ms, self._watch_end)
        else:
            _log.warning(
                "the cluster's coordinator has not answered for %d ms: this gateway gives up the "
                "state, another may take it",
                SESSION_MS - MARGIN_MS,
            )
            self._lose()

    def _expelled(self) -> None:
        self._member_id = ""
        self._lose()

    def _lose(self) -> None:
        """Own nothing any more; a seat must be taken anew."""
        self._seated = False
        if self._mine:
            self._mine = False
            self._owned_since = -1
            self._agreed = self._agreed._replace(owner_id="")
            self._tell()

    # Joining

    def _join(self) -> None:
        if not self._joining and not self._closed:
            self._joining = True
            begin(self._take_seat()).then(self._joined)

    def _joined(self, outcome: Later[None]) -> None:
        self._joining = False
        try:
            outcome.check()
            self._complaint = ""
        except BrokerError as refusal:
            self._seated = False  # tried again with the next beat
            self._complain(refusal)

    def _take_seat(self) -> Steps[None]:
        for _ in range(_JOIN_TRIES):
            link = yield from self._coordinator(_JOINING)
            joined = yield link.ask(_JOIN_GROUP, self._join_fields())
            if self._closed:
                return
            if joined.error_code is ErrorCode.member_id_required:
                self._member_id = joined.member_id
                continue
            if joined.error_code in _EXPELLED:
                self._expelled()
                continue
            check("joining the other gateways", joined.error_code)
            self._member_id = joined.member_id
            sent_s = self._runtime.monotonic()
            synced = yield link.ask(_SYNC_GROUP, self._sync_fields(joined))
            if self._closed:
                return
            if synced.error_code in _EXPELLED:
                self._expelled()
            elif synced.error_code not in _AGAIN:
                check("agreeing with the other gateways", synced.error_code)
                self._agree(joined.generation_id, bytes(synced.assignment), sent_s)
                return

    def _join_fields(self) -> Mapping[str, Any]:
        assert self.me is not None
        candidate = Candidate(self.me, self._owned_since if self.owned else -1)
        return {
            "group_id": GROUP,
            "session_timeout": messages.ms(SESSION_MS),
            "rebalance_timeout": messages.ms(SESSION_MS),
            "member_id": self._member_id,
            "group_instance_id": None,
            "protocol_type": _PROTOCOL_TYPE,
            "protocols": [{"name": _PROTOCOL, "metadata": subscription(candidate)}],
        }

    def _sync_fields(self, joined: Any) -> Mapping[str, Any]:
        plan: list[dict[str, Any]] = []
        if joined.leader == joined.member_id:
            told = {one.member_id: read_subscription(bytes(one.metadata)) for one in joined.members}
            agreed = agree([each for each in told.values() if each is not None])
            for member_id, candidate in told.items():
                owns = candidate is not None and candidate.peer.gateway_id == agreed.owner_id
                part = assignment(agreed, owner=owns)
                plan.append({"member_id": member_id, "assignment": part})
        return {
            "group_id": GROUP,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "group_instance_id": None,
            "assignments": plan,
        }

    def _agree(self, generation: int, data: bytes, sent_s: float) -> None:
        assert self.me is not None
        try:
            agreed, mine = read_assignment(data)
        except ValueError as flaw:
            _log.error("%s; are gateways of other versions in group %s?", flaw, GROUP)
            agreed, mine = Agreement((), ""), False
        kept = self.owned
        self.generation = generation
        self._seated = True
        self._agreed = agreed
        for peer in agreed.fleet:
            if peer.gateway_id == self.me.gateway_id:
                self.me = peer
        if mine and not kept:
            self._owned_since = generation
        elif not mine:
            self._owned_since = -1
        self._mine = mine
        self._trust(sent_s)
        self._tell()

    def _coordinator(self, purpose: str) -> Steps[Link]:
        node = self._coordinator_id
        timeout_ms = _BEAT_TIMEOUT_MS if purpose == _BEATING else REQUEST_TIMEOUT_MS
        link = None if node is None else self._nodes.node(node, purpose, timeout_ms)
        if link is None:
            doing = f"finding the coordinator of group {GROUP!r}"
            fields = {"key": GROUP, "key_type": _GROUP_KEY}
            answer = yield self._nodes.ask_any(_FIND_COORDINATOR, fields)
            check(doing, answer.error_code, getattr(answer, "error_message", None))
            found = self._nodes.node(answer.node_id, purpose, timeout_ms)
            link = self._nodes.required(found, doing)
            self._coordinator_id = answer.node_id
        return link

    # Telling

    def _complain(self, refusal: BrokerError) -> None:
        """The coordinator may have moved; what does not pass by itself is logged once."""
        self._coordinator_id = None
        lasting = not isinstance(refusal, Trouble) or not refusal.retriable
        if lasting and str(refusal) != self._complaint:
            self._complaint = str(refusal)
            _log.error("this gateway cannot meet the others: %s", refusal)

    def _tell(self) -> None:
        for run in list(self._watchers.values()):
            run()


_EXPELLED: Final = (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id)
_AGAIN: Final = (ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation)
