"""Tickets of Kerberos, checked by the `gssapi` package with the keys of this service (RFC 4752)."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Final

from pentalog.broker.credentials import TicketStep
from pentalog.broker.security import Principal
from pentalog.config import Config, ConfigError
from pentalog.model.errors import Unauthorized
from pentalog.model.later import Later
from pentalog.runtime import Runtime

LANE: Final = "kerberos"
_NO_LAYER: Final = 1
"""Nothing is wrapped behind the login: that is what TLS is for."""
_OFFER: Final = bytes([_NO_LAYER, 0, 0, 0])


class KerberosTickets:
    """`credentials.Tickets`, for real."""

    def __init__(self, runtime: Runtime, config: Config) -> None:
        """Raises `ConfigError` if there is no package or no file of keys."""
        try:
            import gssapi  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise ConfigError(
                "sasl_mechanisms names GSSAPI, which needs the package gssapi: "
                "pip install 'pentalog[kerberos]'"
            ) from error
        if not os.access(config.kerberos_keytab or "", os.R_OK):
            raise ConfigError(
                f"sasl_mechanisms names GSSAPI and kerberos_keytab is {config.kerberos_keytab!r}; "
                "accepted is a file with this service's keys that can be read"
            )
        self.gssapi: Any = gssapi
        self.keytab = config.kerberos_keytab
        self.service = config.kerberos_service
        self.runtime = runtime

    def talk(self) -> KerberosTalk:
        return KerberosTalk(self)


class KerberosTalk:
    """One login; the library is called on a lane, where it may read files."""

    def __init__(self, tickets: KerberosTickets) -> None:
        self._tickets = tickets
        self._context: Any = None
        self._offered = False

    def hear(self, message: bytes) -> Later[TicketStep]:
        later: Later[TicketStep] = Later()

        def done(step: TicketStep | None, error: BaseException | None) -> None:
            if step is not None:
                later.fill(step)
            elif isinstance(error, Unauthorized):
                later.refuse(error)
            else:
                later.refuse(Unauthorized(f"the ticket is refused ({type(error).__name__})"))

        self._tickets.runtime.offload(LANE, partial(self._hear, message), done)
        return later

    def _hear(self, message: bytes) -> TicketStep:
        if self._offered:
            return self._finish(message)
        if self._context is None:
            gssapi = self._tickets.gssapi
            keys = gssapi.Credentials(
                usage="accept",
                mechs=[gssapi.MechType.kerberos],
                store={"keytab": self._tickets.keytab},
            )
            self._context = gssapi.SecurityContext(creds=keys, usage="accept")
            # What is refused is refused now, not when the client has heard why.
            self._context.__DEFER_STEP_ERRORS__ = False
        context = self._context
        if not context.complete:
            reply = context.step(message)
            if reply:
                return TicketStep(bytes(reply), None)
            if not context.complete:
                raise Unauthorized("the ticket leads nowhere")
        self._offered = True
        return TicketStep(bytes(context.wrap(_OFFER, False).message), None)

    def _finish(self, message: bytes) -> TicketStep:
        chosen = bytes(self._context.unwrap(message).message)
        if len(chosen) < len(_OFFER) or chosen[0] != _NO_LAYER:
            raise Unauthorized("a layer was chosen that was not offered")
        name = self._name()
        acts_as = chosen[len(_OFFER) :].decode("utf-8", "replace")
        if acts_as.partition("@")[0].partition("/")[0] not in ("", name):
            raise Unauthorized("a user may act as himself only")
        return TicketStep(b"", Principal("User", name))

    def _name(self) -> str:
        """The first part of the name; of our own realm only, others have names of their own."""
        who, _, realm = str(self._context.initiator_name).rpartition("@")
        own, _, own_realm = str(self._context.target_name).rpartition("@")
        if not who or realm != own_realm:
            raise Unauthorized("the ticket is of another realm")
        if own.partition("/")[0] != self._tickets.service:
            raise Unauthorized("the ticket is for another service")
        return who.partition("/")[0]
