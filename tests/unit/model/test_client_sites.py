"""What counts as one address of a client."""

from __future__ import annotations

import pytest

from pentalog.broker.security import Access
from pentalog.model.addresses import site_of


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("a:name", "a:name"),
        ("", ""),
    ],
)
def test_the_network_of_ipv6_counts_as_one(host: str, site: str) -> None:
    assert site_of(host) == site
    assert Access(host=host).owner == f"User:ANONYMOUS@{site}"
