"""Who is at the other end of a Cursus connection: AUTH, and credentials inside of commands.

Passwords and keys of users and delegation tokens are all taken for a token.  While one is being
checked nothing else of the connection is served.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Final

from pentalog.broker.logins import KEY, PASSWORD, TOKEN, Proof
from pentalog.broker.security import ANONYMOUS, Principal
from pentalog.model.later import Later
from pentalog.protocols.cursus.calls import Call
from pentalog.protocols.cursus.errors import Refused
from pentalog.runtime import Timer
from pentalog.session import Context

_BEHIND: Final = re.compile(rb" principal=(\S+) auth_token=(\S+)$")
"""How some clients write credentials behind the message of a TXN_PUBLISH."""

_NAME_CHARACTERS_MAX: Final = 1_000
_TOKEN_CHARACTERS_MAX: Final = 1_024
"""No user has a longer name, password, key or token."""

_BEHIND_BYTES: Final = 10_000
"""Looked at for them at the end of a message."""


class Login:
    def __init__(self, context: Context, hold: Callable[[], Callable[[], None]]) -> None:
        self._context = context
        self._hold = hold
        self._proved: tuple[bytes, int] | None = None
        """Hash of the credentials last accepted, and of which state of the users."""
        self._waiting: Timer | None = None
        self._give_up: Callable[[], None] | None = None
        self._token_id = ""
        """The delegation token by which somebody logged in."""
        self._leave: Callable[[], None] | None = None
        """Takes back that this login ends with the password or key it was made by."""

    def await_login(self, give_up: Callable[[], None]) -> None:
        """Give up unless somebody has logged in in time, where somebody must."""
        context = self._context
        self._give_up = give_up
        if "auth" in context.demands and context.access.who == ANONYMOUS:
            self._waiting = context.runtime.after(context.config.login_timeout_ms, give_up)

    def close(self) -> None:
        self._context.access.cancel_attempt()
        if self._waiting is not None:
            self._waiting.cancel()
        if self._leave is not None:
            self._leave()
            self._leave = None

    def refresh(self) -> None:
        """A connection whose token has expired is nobody's, until somebody logs in again."""
        if self._token_id and self._context.broker.tokens.get(self._token_id) is None:
            self._lapse()

    def _lapse(self) -> None:
        """What somebody logged in by is good no more."""
        self._token_id = ""
        self._leave = None
        self._proved = None
        self._context.access.leave()
        if self._give_up is not None:
            self.await_login(self._give_up)

    def authenticate(self, call: Call) -> None:
        """AUTH."""
        name, token = call.command.get("principal"), call.command.get("token")
        if not name or not token:
            raise Refused("invalid_auth command=AUTH")
        self._prove(
            call, name, token, lambda: call.reply(f"OK principal={name} authenticated=true")
        )

    def claim(self, call: Call) -> tuple[str, str] | None:
        """Return the credentials that a command carries, unless they are known to be right.

        They are not part of the command any more.
        """
        claim = self._claim(call)
        return None if claim is None or self._known(*claim) else claim

    def prove(self, call: Call, claim: tuple[str, str], run: Callable[[], None]) -> None:
        """Call `run` once credentials have been found right, else refuse the command."""
        self._prove(call, *claim, run)

    def _claim(self, call: Call) -> tuple[str, str] | None:
        command = call.command
        if command.verb == "AUTH" or not self._asked:
            return None
        name, token = command.get("principal"), command.get("auth_token")
        if not name and not token and command.verb == "TXN_PUBLISH" and command.message:
            behind = _BEHIND.search(command.message, max(0, len(command.message) - _BEHIND_BYTES))
            if behind is not None:
                name, token = (text.decode("utf-8", "surrogateescape") for text in behind.groups())
                call.command = command._replace(message=command.message[: behind.start()])
        if not name and not token:
            return None
        if not name or not token:
            raise Refused("invalid_auth reason=principal_and_auth_token_required")
        return name, token

    @property
    def _asked(self) -> bool:
        """Does it matter here who somebody is?  If not, he may say what he likes."""
        return self._context.access.guarded or "auth" in self._context.demands

    def _known(self, name: str, token: str) -> bool:
        if self._proved is None:
            return False
        digest, version = self._proved
        same = hmac.compare_digest(digest, _digest(name, token))
        return same and version == self._context.broker.users.version

    def _prove(self, call: Call, name: str, token: str, proved: Callable[[], None]) -> None:
        access = self._context.access
        begun = False
        release: Callable[[], None] | None = None

        def look() -> None:
            nonlocal begun
            begun = True
            if release is None:
                self._look(call, name, token, proved)
                return
            release()
            if call.session.ended:
                access.end_attempt()
            else:
                call.attempt(lambda: self._look(call, name, token, proved))

        if not access.attempt(name, look, len(name) + len(token)):
            call.session.hang_up()
        elif not begun:
            call.keep_place()
            release = self._hold()

    def _look(self, call: Call, name: str, token: str, proved: Callable[[], None]) -> None:
        if len(name) > _NAME_CHARACTERS_MAX or len(token) > _TOKEN_CHARACTERS_MAX:
            self._refuse(call, name)
            return
        found = self._by_key(name, token)
        if found is not None:
            who, proof = found
            self._accept(who, name, token, proof)
            proved()
            return
        later = self._context.broker.users.verify(name, token)

        def verified(right: Later[bool]) -> None:
            if right.value:
                self._accept(Principal("User", name), name, token, Proof(PASSWORD, name))
                proved()
            else:
                self._refuse(call, name)

        if later.ready:
            verified(later)
            return
        call.keep_place()
        release = self._hold()

        def arrived(right: Later[bool]) -> None:
            # What is held is served in a later turn, so behind this.
            release()
            if call.session.ended:
                self._context.access.end_attempt()
            else:
                call.attempt(lambda: verified(right))

        later.then(arrived)

    def _by_key(self, name: str, token: str) -> tuple[Principal, Proof] | None:
        """Whose key or token it is, and which."""
        broker = self._context.broker
        key = broker.users.by_key(token.encode("utf-8", "surrogateescape"))
        if key is not None and key.user == name:
            return Principal("User", name), Proof(KEY, key.fingerprint)
        if not broker.tokens.enabled:
            return None
        try:
            secret = base64.b64decode(token, validate=True)
        except ValueError:
            return None
        found = broker.tokens.by_secret(secret)
        if found is None or broker.tokens.get(found.token_id) is None:
            return None
        if name not in (found.owner.name, found.token_id):
            return None
        return found.owner, Proof(TOKEN, found.token_id)

    def _accept(self, who: Principal, name: str, token: str, proof: Proof) -> None:
        users = self._context.broker.users
        by_token = proof.kind == TOKEN
        self._proved = (_digest(name, token), users.version)
        self._token_id = proof.name if by_token else ""
        self.close()
        if not by_token:
            self._leave = users.logins.enter(proof, self._lapse)
        self._context.access.become(who, "AUTH", by_token=by_token)

    def _refuse(self, call: Call, name: str) -> None:
        # Whoever fails to be somebody else is nobody.
        self._proved = None
        self._token_id = ""
        self.close()
        access = self._context.access
        delay_ms = access.turned_away("AUTH", name[:100], "wrong token")
        access.leave()
        refusal = Refused("authentication_failed mechanism=PLAIN")
        self._hold_back(call, delay_ms, lambda: call.refuse(refusal))

    def _hold_back(self, call: Call, delay_ms: int, run: Callable[[], None]) -> None:
        """Go on after a while, in which nothing is served."""
        if not delay_ms:
            run()
            return
        call.keep_place()
        release = self._hold()

        def go_on() -> None:
            release()
            if not call.session.ended:
                call.attempt(run)

        self._context.runtime.after(delay_ms, go_on)


def _digest(name: str, token: str) -> bytes:
    return hashlib.sha256(f"{name}\0{token}".encode("utf-8", "surrogateescape")).digest()
