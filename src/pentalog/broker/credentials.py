"""The part of the contract about who somebody is: users, tokens, and what proves them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from pentalog.broker.logins import Logins
from pentalog.broker.security import Principal
from pentalog.model.errors import Unauthorized, UserNotFound
from pentalog.model.later import Later

NAME_BYTES_MAX: Final = 249
"""Of a user's name, when the user is created and at every login."""
PASSWORD_BYTES_MAX: Final = 1024
TOKEN_BYTES_MAX: Final = 64 << 10
"""Of a signed token or a ticket.  Identity providers stay below 16 KiB; a Kerberos ticket with a
long list of groups has at most 65,535 bytes (MaxTokenSize)."""


class Mechanism(Enum):
    """How a password is turned into a verifier."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        return "sha256" if self is Mechanism.SHA_256 else "sha512"

    @property
    def digest_bytes(self) -> int:
        return 32 if self is Mechanism.SHA_256 else 64


class Verifier(NamedTuple):
    """Checks a password without knowing it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class KeyView(NamedTuple):
    """A key, for those who list them."""

    user: str
    label: str
    created_ms: int
    fingerprint: str
    """The first characters of its hash: enough to tell keys apart, of no use to log in."""


class Users(Protocol):
    version: int
    """Grows with every change."""
    logins: Logins
    """Open ones by passwords and keys: they end with what they were made by."""

    def names(self) -> Collection[str]: ...

    def mechanisms(self, name: str) -> Mapping[Mechanism, int]:
        """The iterations of each verifier of a user; raises `UserNotFound`."""

    def verifier(self, name: str, mechanism: Mechanism) -> Verifier | None: ...

    def decoy(self, name: str, mechanism: Mechanism) -> Verifier:
        """What is shown for a user without such a verifier: like a real one, the same every time.

        No password fits it.
        """

    def verify(self, name: str, password: str) -> Later[bool]:
        """Is this the user's password?  Takes as long for users that do not exist."""

    def set_password(self, name: str, password: str) -> Later[None]:
        """Make the user, or change its password; ready when it is on the disk."""

    def set_verifier(self, name: str, mechanism: Mechanism, verifier: Verifier) -> None:
        """Take a verifier that somebody else made of the password; durable with `settle`."""

    def drop_verifier(self, name: str, mechanism: Mechanism) -> None:
        """Raises `UserNotFound`.  With the last one the user goes, and his keys with him."""

    def drop(self, name: str) -> None: ...

    def add_key(self, name: str, label: str) -> str:
        """A new key of a user; this is the only time it can be seen."""

    def set_key(self, name: str, label: str, digest: str) -> None:
        """Take a key that somebody else made, by its hash; durable with `settle`."""

    def drop_key(self, fingerprint: str) -> None: ...

    def keys(self) -> Collection[KeyView]: ...

    def by_key(self, key: bytes) -> KeyView | None: ...

    def settle(self) -> Later[None]:
        """Ready as soon as every change made so far is on the disk."""


class TokenView(NamedTuple):
    """A delegation token: lets its holder log in as its owner, for a while."""

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    expires_ms_max: int
    """It cannot be renewed beyond this."""


class Tokens(Protocol):
    enabled: bool
    """False: there is no secret to make tokens with."""
    logins: Logins
    """Open ones by tokens: they end with them."""

    def create(
        self,
        owner: Principal,
        requester: Principal,
        renewers: Sequence[Principal],
        lifetime_ms: int,
    ) -> TokenView:
        """`lifetime_ms` below 0: as long as the broker allows.  Durable with `settle`.

        Raises `InvalidConfig` for too many or too long names, `Overloaded` for too many tokens.
        """

    def secret(self, token_id: str) -> bytes:
        """What the holder proves; computed, never stored."""

    def by_secret(self, secret: bytes) -> TokenView | None: ...

    def get(self, token_id: str) -> TokenView | None:
        """None if there is none that is still good."""

    def all(self) -> Iterator[TokenView]:
        """Those that are still good; others may change between two of them."""

    def of(self, who: Principal) -> Iterator[TokenView]:
        """The same, of those that a principal owns, has asked for or may renew."""

    def prolong(self, token_id: str, period_ms: int) -> TokenView:
        """Make it good from now on for this long, or for the broker's usual time if below 0."""

    def drop(self, token_id: str) -> None: ...

    def verifier(self, token_id: str, mechanism: Mechanism) -> Later[Verifier]:
        """The verifier of a token, also if there is no such token: ask `get` whether there is."""

    def settle(self) -> Later[None]: ...


class Bearer(NamedTuple):
    """What a signed token says of its bearer."""

    who: Principal
    expires_ms: int


class Bearers(Protocol):
    """Checks tokens that somebody else has signed."""

    enabled: bool

    def verify(self, token: str) -> Later[Bearer]:
        """Raises `Unauthorized`; the text never quotes the token."""


class TicketStep(NamedTuple):
    """What to tell the bearer of a ticket, and who it is once that is known."""

    reply: bytes
    who: Principal | None


class TicketTalk(Protocol):
    """One conversation about one ticket."""

    def hear(self, message: bytes) -> Later[TicketStep]:
        """Refused with `Unauthorized` if the ticket is no good."""


class Tickets(Protocol):
    """Checks tickets of Kerberos."""

    def talk(self) -> TicketTalk: ...


class Nobody:
    """The users of a broker that has none."""

    version = 0
    logins = Logins()

    def names(self) -> Collection[str]:
        return ()

    def mechanisms(self, name: str) -> Mapping[Mechanism, int]:
        raise UserNotFound(f"there is no user {name!r}: this broker keeps none")

    def verifier(self, name: str, mechanism: Mechanism) -> Verifier | None:
        return None

    def decoy(self, name: str, mechanism: Mechanism) -> Verifier:
        raise self._refusal()

    def verify(self, name: str, password: str) -> Later[bool]:
        return Later.now(False)

    def set_password(self, name: str, password: str) -> Later[None]:
        raise self._refusal()

    def set_verifier(self, name: str, mechanism: Mechanism, verifier: Verifier) -> None:
        raise self._refusal()

    def drop_verifier(self, name: str, mechanism: Mechanism) -> None:
        raise self._refusal()

    def drop(self, name: str) -> None:
        raise self._refusal()

    def add_key(self, name: str, label: str) -> str:
        raise self._refusal()

    def set_key(self, name: str, label: str, digest: str) -> None:
        raise self._refusal()

    def drop_key(self, fingerprint: str) -> None:
        raise self._refusal()

    def keys(self) -> Collection[KeyView]:
        return ()

    def by_key(self, key: bytes) -> KeyView | None:
        return None

    def settle(self) -> Later[None]:
        return Later.now(None)

    def _refusal(self) -> Unauthorized:
        return Unauthorized("this broker keeps no users: ask one with a data directory")


class Tokenless:
    """The tokens of a broker that has no secret to make them with."""

    enabled = False
    logins = Logins()

    def create(
        self,
        owner: Principal,
        requester: Principal,
        renewers: Sequence[Principal],
        lifetime_ms: int,
    ) -> TokenView:
        raise self._refusal()

    def secret(self, token_id: str) -> bytes:
        raise self._refusal()

    def by_secret(self, secret: bytes) -> TokenView | None:
        return None

    def get(self, token_id: str) -> TokenView | None:
        return None

    def all(self) -> Iterator[TokenView]:
        return iter(())

    def of(self, who: Principal) -> Iterator[TokenView]:
        return iter(())

    def prolong(self, token_id: str, period_ms: int) -> TokenView:
        raise self._refusal()

    def drop(self, token_id: str) -> None:
        raise self._refusal()

    def verifier(self, token_id: str, mechanism: Mechanism) -> Later[Verifier]:
        later: Later[Verifier] = Later()
        later.refuse(self._refusal())
        return later

    def settle(self) -> Later[None]:
        return Later.now(None)

    def _refusal(self) -> Unauthorized:
        return Unauthorized("this broker makes no tokens: set delegation_token_secret")


class Trustless:
    """A broker that trusts nobody's signature."""

    enabled = False

    def verify(self, token: str) -> Later[Bearer]:
        later: Later[Bearer] = Later()
        later.refuse(
            Unauthorized("this broker knows no keys of signed tokens: set oauth_jwks_file")
        )
        return later


class Ticketless:
    """A broker that Kerberos knows nothing of."""

    def talk(self) -> TicketTalk:
        raise Unauthorized("this broker has no keys of Kerberos: set kerberos_keytab")


NOBODY: Final = Nobody()
TOKENLESS: Final = Tokenless()
TRUSTLESS: Final = Trustless()
TICKETLESS: Final = Ticketless()
