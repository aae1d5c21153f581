"""Users and what proves who they are; no secret itself is kept, only what a proof is checked by.

A password becomes one salted verifier per mechanism (RFC 5802), which also serves where a client
shows the password itself.  Keys are long and random, so a plain hash of them is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, NamedTuple

from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped]
from scramp.utils import saslprep  # type: ignore[import-untyped]

from pentalog.broker.credentials import (
    NAME_BYTES_MAX,
    PASSWORD_BYTES_MAX,
    KeyView,
    Mechanism,
    Verifier,
)
from pentalog.broker.decoys import SECRET_BYTES, Decoys, Shape
from pentalog.broker.logins import KEY, PASSWORD, Logins, Proof
from pentalog.broker.needs import Rows
from pentalog.model.errors import BrokerError, InvalidConfig, UserNotFound
from pentalog.model.later import Later
from pentalog.runtime import Runtime

ITERATIONS: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""More would let a client that claims a password occupy a thread for long."""
LANE: Final = "passwords"
_KEY_BYTES: Final = 32
_KEY_BYTES_MAX: Final = 1024
"""Of a key that is shown; ours have 46."""
_KEY_PREFIX: Final = "pk_"
_SALT_BYTES: Final = 32
_SALT_BYTES_MIN: Final = 12
"""Shorter ones are not imitated: many clients refuse them."""
_SALT_BYTES_MAX: Final = 1024
_LABEL_CHARACTERS_MAX: Final = 249
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FINGERPRINT_CHARACTERS: Final = 12
_SECRET_ROW: Final = "decoy_secret"

__all__ = ["ITERATIONS", "KeyView", "LocalUsers", "Mechanism", "Verifier", "digest_of"]


class _Work(NamedTuple):
    """What it takes to check a password."""

    mechanism: Mechanism
    iterations: int


class _Shapes:
    """What challenges and checks of real users look like, and of how many."""

    def __init__(self, verifiers: Mapping[str, Mapping[Mechanism, Verifier]]) -> None:
        self.challenges: dict[Mechanism, Counter[Shape]] = {}
        for mechanism in Mechanism:
            of_users = [own[mechanism] for own in verifiers.values() if mechanism in own]
            self.challenges[mechanism] = Counter(
                Shape.of(each) for each in of_users if len(each.salt) >= _SALT_BYTES_MIN
            ) or Counter([Shape(ITERATIONS, _SALT_BYTES, in_letters=False)])
        used = ((_preferred(own), own) for own in verifiers.values())
        self.work = Counter(
            _Work(mechanism, own[mechanism].iterations) for mechanism, own in used
        ) or Counter([_Work(Mechanism.SHA_256, ITERATIONS)])


class LocalUsers:
    def __init__(self, state: Rows, runtime: Runtime) -> None:
        self._state = state
        self._runtime = runtime
        self._verifiers: dict[str, dict[Mechanism, Verifier]] = {}
        self._keys: dict[str, KeyView] = {}
        self._decoys = Decoys(b"")
        self._shapes = _Shapes({})
        self._shapes_version = 0
        self.version = 1
        self.logins = Logins()
        self.on_dropped: list[Callable[[str], None]] = []
        """Is told who is no user any more."""

    def open(self) -> None:
        columns = "name, mechanism, salt, stored_key, server_key, iterations"
        for name, mechanism, *verifier in self._state.rows(f"SELECT {columns} FROM verifiers"):
            self._verifiers.setdefault(name, {})[Mechanism(mechanism)] = Verifier(*verifier)
        columns = "digest, name, label, created_ms"
        for digest, name, label, created_ms in self._state.rows(f"SELECT {columns} FROM keys"):
            self._keys[digest] = _view(digest, name, label, created_ms)
        self._decoys = Decoys(self._decoy_secret())

    def _decoy_secret(self) -> bytes:
        """What decoys are made with: kept, so that they look the same after a restart."""
        for (text,) in self._state.rows("SELECT value FROM meta WHERE name = ?", _SECRET_ROW):
            return bytes.fromhex(text)
        secret = secrets.token_bytes(SECRET_BYTES)
        self._state.write(
            "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", _SECRET_ROW, secret.hex()
        )
        return secret

    def names(self) -> Collection[str]:
        return sorted({*self._verifiers, *(key.user for key in self._keys.values())})

    def mechanisms(self, name: str) -> Mapping[Mechanism, int]:
        self._require(name)
        found = self._verifiers.get(name, {})
        return {mechanism: verifier.iterations for mechanism, verifier in found.items()}

    def verifier(self, name: str, mechanism: Mechanism) -> Verifier | None:
        return self._verifiers.get(name, {}).get(mechanism)

    def decoy(self, name: str, mechanism: Mechanism) -> Verifier:
        return self._decoys.verifier(name, mechanism, self._seen().challenges[mechanism])

    def verify(self, name: str, password: str) -> Later[bool]:
        # Chosen for users that exist, too, so that the time taken says nothing.
        work = self._decoys.choose("PLAIN", name, self._seen().work)
        found = self._verifiers.get(name, {})
        if found:
            mechanism = _preferred(found)
            verifier = found[mechanism]
        else:
            mechanism = work.mechanism
            verifier = Verifier(bytes(_SALT_BYTES), b"", b"", work.iterations)
        later: Later[bool] = Later()

        def done(right: bool | None, error: BaseException | None) -> None:
            # The user may have been deleted, or got another password, meanwhile.
            good = self._verifiers.get(name, {}).get(mechanism) == verifier
            later.fill(error is None and bool(right) and good)

        self._runtime.offload(LANE, partial(_matches, mechanism, verifier, password), done)
        return later

    def _seen(self) -> _Shapes:
        if self._shapes_version != self.version:
            self._shapes_version = self.version
            self._shapes = _Shapes(self._verifiers)
        return self._shapes

    def set_password(self, name: str, password: str) -> Later[None]:
        _check_name(name)
        _check_password(name, password)
        self._state.check()
        later: Later[None] = Later()

        def done(made: dict[Mechanism, Verifier] | None, error: BaseException | None) -> None:
            if made is None:
                later.refuse(_refused(name, error))
                return
            for mechanism, verifier in made.items():
                self._put(name, mechanism, verifier)
            self._state.settle().then(partial(_pass_on, later))

        self._runtime.offload(LANE, partial(make_verifiers, password), done)
        return later

    def set_verifier(self, name: str, mechanism: Mechanism, verifier: Verifier) -> None:
        _check_name(name)
        size = mechanism.digest_bytes
        if (len(verifier.stored_key), len(verifier.server_key)) != (size, size):
            raise InvalidConfig(f"a verifier of {mechanism.value} has two keys of {size} bytes")
        if not 0 < len(verifier.salt) <= _SALT_BYTES_MAX:
            raise InvalidConfig(
                f"a salt of {len(verifier.salt)} bytes was refused; "
                f"accepted are 1 to {_SALT_BYTES_MAX}"
            )
        if not ITERATIONS <= verifier.iterations <= ITERATIONS_MAX:
            raise InvalidConfig(
                f"{verifier.iterations} iterations were refused; accepted is "
                f"{ITERATIONS} to {ITERATIONS_MAX}"
            )
        self._state.check()
        self._put(name, mechanism, verifier)

    def drop_verifier(self, name: str, mechanism: Mechanism) -> None:
        if self.verifier(name, mechanism) is None:
            raise UserNotFound(f"user {name!r} has no verifier of {mechanism.value}")
        if len(self._verifiers[name]) == 1:
            self.drop(name)
            return
        self._state.check()
        del self._verifiers[name][mechanism]
        self._state.write(
            "DELETE FROM verifiers WHERE name = ? AND mechanism = ?", name, mechanism.value
        )
        self.version += 1
        self.logins.end_unless(self._good)

    def drop(self, name: str) -> None:
        self._require(name)
        self._state.check()
        self._verifiers.pop(name, None)
        self._keys = {digest: key for digest, key in self._keys.items() if key.user != name}
        self._state.write("DELETE FROM verifiers WHERE name = ?", name)
        self._state.write("DELETE FROM keys WHERE name = ?", name)
        self.version += 1
        self.logins.end_unless(self._good)
        for dropped in self.on_dropped:
            dropped(name)

    def add_key(self, name: str, label: str) -> str:
        key = _KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
        self.set_key(name, label, digest_of(key.encode()))
        return key

    def set_key(self, name: str, label: str, digest: str) -> None:
        _check_name(name)
        if len(label) > _LABEL_CHARACTERS_MAX or not label.isprintable():
            raise InvalidConfig(
                f"the label of a key was refused; accepted are up to {_LABEL_CHARACTERS_MAX} "
                "printable characters"
            )
        if _DIGEST.fullmatch(digest) is None:
            raise InvalidConfig("a key is told by its SHA-256 in 64 small hexadecimal digits")
        fingerprint = digest[:_FINGERPRINT_CHARACTERS]
        if any(key.fingerprint == fingerprint for key in self._keys.values()):
            raise InvalidConfig(f"there is a key {fingerprint} already: make another one")
        self._state.check()
        now_ms = self._runtime.now_ms()
        self._keys[digest] = _view(digest, name, label, now_ms)
        self._state.write(
            "INSERT INTO keys (digest, name, label, created_ms) VALUES (?, ?, ?, ?)",
            digest,
            name,
            label,
            now_ms,
        )
        self.version += 1

    def drop_key(self, fingerprint: str) -> None:
        found = [digest for digest, key in self._keys.items() if key.fingerprint == fingerprint]
        if not found:
            raise UserNotFound(f"there is no key {fingerprint!r}; list them to see which are")
        self._state.check()
        for digest in found:
            del self._keys[digest]
            self._state.write("DELETE FROM keys WHERE digest = ?", digest)
        self.version += 1
        self.logins.end_unless(self._good)

    def keys(self) -> Collection[KeyView]:
        return sorted(self._keys.values())

    def by_key(self, key: bytes) -> KeyView | None:
        if len(key) > _KEY_BYTES_MAX:
            return None
        # Looked up by its hash: how long that takes says nothing of the keys that exist.
        return self._keys.get(digest_of(key))

    def settle(self) -> Later[None]:
        return self._state.settle()

    def _good(self, proof: Proof) -> bool:
        """Is what somebody logged in by still there?"""
        kind, name = proof
        if kind == KEY:
            return any(key.fingerprint == name for key in self._keys.values())
        own = self._verifiers.get(name, {})
        return bool(own) if kind == PASSWORD else Mechanism(kind) in own

    def _require(self, name: str) -> None:
        if name not in self._verifiers and all(key.user != name for key in self._keys.values()):
            raise UserNotFound(f"there is no user {name!r}; list the users to see who is")

    def _put(self, name: str, mechanism: Mechanism, verifier: Verifier) -> None:
        self._verifiers.setdefault(name, {})[mechanism] = verifier
        self._state.write(
            "INSERT OR REPLACE INTO verifiers"
            " (name, mechanism, salt, stored_key, server_key, iterations)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            name,
            mechanism.value,
            *verifier,
        )
        self.version += 1


def make_verifiers(password: str) -> dict[Mechanism, Verifier]:
    """What is kept of a password; takes milliseconds."""
    return {mechanism: make_verifier(mechanism, password) for mechanism in Mechanism}


def make_verifier(mechanism: Mechanism, password: str, salt: bytes | None = None) -> Verifier:
    """Salted at random unless a salt is given."""
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    made = ScramMechanism(mechanism.value).make_auth_info(password, ITERATIONS, salt)
    return Verifier(*made)


def _preferred(verifiers: Mapping[Mechanism, Verifier]) -> Mechanism:
    """Which verifier a password is checked by."""
    return Mechanism.SHA_256 if Mechanism.SHA_256 in verifiers else Mechanism.SHA_512


def _view(digest: str, name: str, label: str, created_ms: int) -> KeyView:
    return KeyView(name, label, created_ms, digest[:_FINGERPRINT_CHARACTERS])


def digest_of(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _matches(mechanism: Mechanism, verifier: Verifier, password: str) -> bool:
    if len(password) > PASSWORD_BYTES_MAX or len(password.encode()) > PASSWORD_BYTES_MAX:
        return False
    try:
        prepared = saslprep(password).encode()
    except ScramException:  # not a text that could be a password
        return False
    # Not by the library, which refuses salts as short as other tools may have made them.
    digest = mechanism.digest
    salted = hashlib.pbkdf2_hmac(digest, prepared, verifier.salt, verifier.iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    return hmac.compare_digest(hashlib.new(digest, client_key).digest(), verifier.stored_key)


def _check_name(name: str) -> None:
    if not name or len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
        raise InvalidConfig(
            f"user name {name!r} was refused; accepted are 1 to {NAME_BYTES_MAX} bytes of "
            "printable text"
        )


def _check_password(name: str, password: str) -> None:
    size = len(password.encode())
    if not 0 < size <= PASSWORD_BYTES_MAX:
        raise InvalidConfig(
            f"a password of {size} bytes for {name!r} was refused; "
            f"accepted are 1 to {PASSWORD_BYTES_MAX}"
        )


def _refused(name: str, error: BaseException | None) -> InvalidConfig:
    # What the library says of a password may quote it.
    kind = "unknown" if error is None else type(error).__name__
    return InvalidConfig(
        f"the password for {name!r} was refused ({kind}); give printable text without "
        "unassigned characters"
    )


def _pass_on(later: Later[None], settled: Later[None]) -> None:
    try:
        later.fill(settled.value)
    except BrokerError as refusal:
        later.refuse(refusal)
