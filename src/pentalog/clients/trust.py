"""Whom a client believes to be the server it meant."""

from __future__ import annotations

import ssl


def only(certificate: str) -> ssl.SSLContext:
    """Trust this certificate, given in PEM, and no other, whatever name it is for.

    For those to whom the server's owner has given it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context
