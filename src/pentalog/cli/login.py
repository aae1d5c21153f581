"""How commands say who they are to a broker that asks: by the environment, for every verb.

PENTALOG_LOGIN_USER and PENTALOG_LOGIN_PASSWORD log in by SASL, PENTALOG_LOGIN_MECHANISM says how,
PENTALOG_LOGIN_CA names the certificates to trust and so asks for TLS.  None of them is an option:
whoever may list processes reads the options of all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

import typer

from pentalog.cli.output import Misused
from pentalog.clients.kafka.authentication import MECHANISMS
from pentalog.clients.kafka.connection import ClientOptions

_MECHANISM: Final = "SCRAM-SHA-512"


def client_options(
    timeout_ms: int, client_id: str, environment: Mapping[str, str] = os.environ
) -> ClientOptions:
    user = environment.get("PENTALOG_LOGIN_USER", "")
    mechanism = environment.get("PENTALOG_LOGIN_MECHANISM", _MECHANISM) if user else ""
    if mechanism and mechanism not in MECHANISMS:
        raise Misused(
            f"PENTALOG_LOGIN_MECHANISM {mechanism!r} is not one of {', '.join(MECHANISMS)}"
        )
    authorities = environment.get("PENTALOG_LOGIN_CA")
    return ClientOptions(
        timeout_ms=timeout_ms,
        client_id=client_id,
        tls=bool(authorities),
        tls_authorities=authorities or None,
        sasl_mechanism=mechanism,
        username=user,
        password=environment.get("PENTALOG_LOGIN_PASSWORD", ""),
    )


def asked_password(given: str | None, whose: str) -> str:
    """The password of an option, of the first line of a pipe, or typed twice."""
    if given is None:
        if sys.stdin.isatty():
            given = typer.prompt(
                f"Password for {whose}", hide_input=True, confirmation_prompt=True, err=True
            )
        else:
            given = sys.stdin.readline().rstrip("\r\n")
    if not given:
        raise Misused("no password was given: use --password, a pipe, or type it at a terminal")
    return given
