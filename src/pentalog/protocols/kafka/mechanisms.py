"""The SASL mechanisms: what a client says and is told until it is known who it is.

PLAIN        name and password, once
SCRAM-SHA-*  two messages each way (RFC 5802); delegation tokens log in by it too
OAUTHBEARER  a signed token, once (RFC 7628); a refusal takes a second message
GSSAPI       a ticket of Kerberos, then a word about layers, of which there are none (RFC 4752)
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped]

from pentalog.broker.credentials import (
    NAME_BYTES_MAX,
    PASSWORD_BYTES_MAX,
    TOKEN_BYTES_MAX,
    Bearer,
    Mechanism,
    TicketStep,
    Verifier,
)
from pentalog.broker.logins import PASSWORD, TOKEN, Proof
from pentalog.broker.port import Broker
from pentalog.broker.security import Principal
from pentalog.model.errors import BrokerError, Unauthorized
from pentalog.model.later import Later

_TOKEN_MARK: Final = "tokenauth=true"
"""Kafka's extension: the name is a delegation token's id."""
_SALT_BYTES: Final = 16
_REFUSED_TOKEN: Final = b'{"status":"invalid_token"}'
_AUTHORIZATION: Final = re.compile(r"(?i:bearer) +([A-Za-z0-9._~+/=-]+)")
_PAIR_NAME: Final = re.compile(r"[A-Za-z]+")
_PAIRS_MAX: Final = 64
"""Of an OAUTHBEARER message: the token, and extensions such as Confluent's `logicalCluster`."""
_PLAIN_BYTES_MAX: Final = 2 * NAME_BYTES_MAX + PASSWORD_BYTES_MAX + 2
_SCRAM_BYTES_MAX: Final = 4 << 10
"""A name in its longest spelling, two nonces and a proof have about 1 KiB."""
_BEARER_BYTES_MAX: Final = TOKEN_BYTES_MAX + (2 << 10)
MESSAGE_BYTES_MAX: Final = max(_PLAIN_BYTES_MAX, _SCRAM_BYTES_MAX, _BEARER_BYTES_MAX)
"""The longest message of any mechanism."""


class Known(NamedTuple):
    """Who somebody turned out to be."""

    who: Principal
    expires_ms: int = -1
    """When what he showed is good no more, in ms since 1970; -1: never."""
    proof: Proof | None = None
    """What he showed, if it can be taken back here."""

    @property
    def by_token(self) -> bool:
        return self.proof is not None and self.proof.kind == TOKEN


class Step(NamedTuple):
    """What to tell the client, and who it is if that is known now."""

    reply: bytes
    known: Known | None = None
    refusal: str = ""
    """Why the login has failed, where the client has to acknowledge the reply before it ends."""


class Conversation(Protocol):
    """One login by one mechanism."""

    bytes_max: int
    """The longest message that is accepted."""
    claimed: str
    """The name the client says it has; empty until it does."""

    def claim(self, message: bytes) -> str | None:
        """The name that a message is to prove, empty if it does not say; None: it proves nothing.

        Says so before the message is checked; to check one that proves something is an attempt.
        """

    def hear(self, message: bytes) -> Later[Step]:
        """The next message; refused with `Unauthorized` if it proves that the client lies."""


def refused(text: str) -> Later[Step]:
    later: Later[Step] = Later()
    later.refuse(Unauthorized(text))
    return later


class Plain:
    bytes_max = _PLAIN_BYTES_MAX

    def __init__(self, broker: Broker) -> None:
        self.claimed = ""
        self._users = broker.users

    def claim(self, message: bytes) -> str | None:
        _, _, rest = message.partition(b"\0")
        return rest.partition(b"\0")[0].decode("utf-8", "replace")

    def hear(self, message: bytes) -> Later[Step]:
        try:
            acts_as, name, password = message.decode().split("\0")
        except ValueError:
            return refused("a PLAIN message is not three texts separated by zeros")
        self.claimed = name
        if not name or not password:
            return refused("a PLAIN message lacks the name or the password")
        if len(name.encode()) > NAME_BYTES_MAX:
            return refused(f"a name of more than {NAME_BYTES_MAX} bytes")
        if acts_as not in ("", name):
            return refused("a user may act as themselves only")
        later: Later[Step] = Later()

        def verified(right: Later[bool]) -> None:
            if right.value:
                later.fill(Step(b"", Known(Principal("User", name), proof=Proof(PASSWORD, name))))
            else:
                later.refuse(Unauthorized("the name or the password is wrong"))

        self._users.verify(name, password).then(verified)
        return later


class Scram:
    bytes_max = _SCRAM_BYTES_MAX

    def __init__(self, broker: Broker, mechanism: Mechanism) -> None:
        self.claimed = ""
        self._broker = broker
        self._mechanism = mechanism
        self._server: Any = None
        self._known: Known | None = None
        self._verifier: Verifier | None = None
        """What is proved, of a user."""

    def claim(self, message: bytes) -> str | None:
        if self._server is not None:
            return self.claimed
        # A challenge proves nothing; but that of a token has to be computed.
        return "" if _TOKEN_MARK.encode() in message else None

    def hear(self, message: bytes) -> Later[Step]:
        try:
            text = message.decode()
        except UnicodeDecodeError:
            return refused("a SCRAM message is not UTF-8")
        return self._first(text) if self._server is None else self._final(text)

    def _first(self, text: str) -> Later[Step]:
        parts = text.split(",")
        if len(parts) < 4 or not parts[2].startswith("n="):
            return refused("the first SCRAM message is not one")
        name = parts[2][2:].replace("=2C", ",").replace("=3D", "=")
        if len(name.encode()) > NAME_BYTES_MAX:
            # Refused before it is normalized, which takes time that grows with its square.
            return refused(f"a name of more than {NAME_BYTES_MAX} bytes")
        # The library does not know words of several letters before the sign of equality.
        plain = ",".join(part for part in parts if part != _TOKEN_MARK)
        if _TOKEN_MARK not in parts:
            return self._challenge(text, plain, self._verifier_of)
        self.claimed = token_id = parts[2][2:]
        later: Later[Step] = Later()
        found = self._broker.tokens.verifier(token_id, self._mechanism)
        found.then(partial(self._token_found, later, token_id, text, plain))
        return later

    def _verifier_of(self, name: str) -> Verifier:
        self.claimed = name
        users = self._broker.users
        # Made for users that exist, too, so that the time taken says nothing.
        decoy = users.decoy(name, self._mechanism)
        found = users.verifier(name, self._mechanism)
        if found is None:
            return decoy
        self._known = Known(Principal("User", name), proof=Proof(self._mechanism.value, name))
        self._verifier = found
        return found

    def _token_found(
        self,
        later: Later[Step],
        token_id: str,
        text: str,
        plain: str,
        found: Later[Verifier],
    ) -> None:
        tokens = self._broker.tokens
        try:
            verifier = found.value
        except BrokerError:  # this broker makes no tokens
            verifier = self._broker.users.decoy(token_id, self._mechanism)
        token = tokens.get(token_id) if tokens.enabled else None
        if token is not None:
            self._known = Known(token.owner, token.expires_ms, Proof(TOKEN, token_id))
        challenged = self._challenge(text, plain, lambda _: verifier)
        challenged.then(partial(_pass_on, later))

    def _challenge(
        self, text: str, plain: str, verifier_of: Callable[[str], Verifier]
    ) -> Later[Step]:
        found: list[Verifier] = []

        def look_up(name: str) -> tuple[bytes, bytes, bytes, int]:
            found.append(verifier_of(name))
            salt, *others = found[0]
            return (salt.ljust(_SALT_BYTES, b"\0"), *others)  # type: ignore[return-value]

        server = ScramMechanism(self._mechanism.value).make_server(look_up)
        try:
            server.set_client_first(plain)
            # The library tells no salt as short as other tools may have made it.
            server.salt = b64encode(found[0].salt).decode()
            challenge: str = server.get_server_first()
        except ScramException as flaw:
            return refused(f"the first SCRAM message is refused: {flaw.args[0]}")
        server.client_first_bare = text.split(",", 2)[2]
        self._server = server
        return Later.now(Step(challenge.encode()))

    def _final(self, text: str) -> Later[Step]:
        server = self._server
        # librdkafka before 2.6.1, and so the kcat of most distributions, puts its own nonce in
        # front once more.  Ours is in it all the same, so nothing can be replayed.
        nonce = str(server.nonce)
        doubled = nonce.removesuffix(str(server.s_nonce)) + nonce
        if f",r={doubled}," in text:
            server.nonce = type(server.nonce)(doubled)
        try:
            server.set_client_final(text)
            answer: str = server.get_server_final()
        except ScramException:
            return refused("the name or the password is wrong")
        if self._known is None or not self._still_good(self._known.proof):
            return refused("the name or the password is wrong")
        return Later.now(Step(answer.encode(), self._known))

    def _still_good(self, proof: Proof | None) -> bool:
        """It may have been taken back between the two messages."""
        assert proof is not None, "nobody is known by SCRAM without one"
        if proof.kind == TOKEN:
            return self._broker.tokens.get(proof.name) is not None
        return self._broker.users.verifier(proof.name, self._mechanism) == self._verifier


class OAuthBearer:
    bytes_max = _BEARER_BYTES_MAX

    def __init__(self, broker: Broker) -> None:
        self.claimed = ""
        self._bearers = broker.bearers
        self._refusal = ""

    def claim(self, message: bytes) -> str | None:
        return None if self._refusal else ""

    def hear(self, message: bytes) -> Later[Step]:
        if self._refusal:
            return refused(self._refusal)
        found = read_bearer(message.decode("utf-8", "replace"))
        if found is None:
            return refused("the message carries no bearer token")
        later: Later[Step] = Later()
        acts_as, token = found

        def verified(done: Later[Bearer]) -> None:
            try:
                bearer = done.value
            except BrokerError as refusal:
                # The client is told in words of the mechanism, and says that it has heard.
                self._refusal = str(refusal)
                later.fill(Step(_REFUSED_TOKEN, refusal=self._refusal))
                return
            self.claimed = bearer.who.name
            if acts_as not in ("", bearer.who.name):
                later.refuse(Unauthorized("a user may act as themselves only"))
            else:
                later.fill(Step(b"", Known(bearer.who, bearer.expires_ms)))

        self._bearers.verify(token).then(verified)
        return later


def read_bearer(text: str) -> tuple[str, str] | None:
    """The name to act as and the token of a message (RFC 7628), or None if it is malformed.

    `n,a=NAME,` and then, each after a byte 1, pairs `name=value`, of which one is `auth`; two
    bytes 1 end it.
    """
    head, *pairs = text.split("\x01", _PAIRS_MAX + 3)
    flag, _, rest = head.partition(",")
    identity, comma, behind = rest.partition(",")
    if flag != "n" or not comma or behind or not (identity == "" or identity.startswith("a=")):
        return None
    if not 3 <= len(pairs) <= _PAIRS_MAX + 2 or pairs[-2:] != ["", ""]:
        return None
    tokens = []
    for pair in pairs[:-2]:
        name, sign, value = pair.partition("=")
        if not sign or _PAIR_NAME.fullmatch(name) is None:
            return None
        if name == "auth":
            tokens.append(value)
    found = _AUTHORIZATION.fullmatch(tokens[0]) if len(tokens) == 1 else None
    return None if found is None else (identity[2:], found[1])


class Gssapi:
    bytes_max = TOKEN_BYTES_MAX

    def __init__(self, broker: Broker) -> None:
        self.claimed = ""
        self._talk = broker.tickets.talk()

    def claim(self, message: bytes) -> str | None:
        return ""

    def hear(self, message: bytes) -> Later[Step]:
        later: Later[Step] = Later()

        def heard(done: Later[TicketStep]) -> None:
            try:
                reply, who = done.value
            except BrokerError as refusal:
                later.refuse(refusal)
                return
            later.fill(Step(reply, None if who is None else Known(who)))

        self._talk.hear(message).then(heard)
        return later


def _pass_on(later: Later[Step], done: Later[Step]) -> None:
    try:
        later.fill(done.value)
    except BrokerError as refusal:
        later.refuse(refusal)


MECHANISMS: Final[Mapping[str, Callable[[Broker], Conversation]]] = {
    "PLAIN": Plain,
    "SCRAM-SHA-256": partial(Scram, mechanism=Mechanism.SHA_256),
    "SCRAM-SHA-512": partial(Scram, mechanism=Mechanism.SHA_512),
    "OAUTHBEARER": OAuthBearer,
    "GSSAPI": Gssapi,
}
