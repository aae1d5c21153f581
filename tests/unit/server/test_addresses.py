"""Which connection is closed for a newcomer."""

from __future__ import annotations

import pytest

from pentalog.server.addresses import Addresses, block_of


class Guest:
    def __init__(self, rank: int, used_s: float) -> None:
        self.standing = (rank, used_s)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("unknown", "unknown", True),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, *, same: bool) -> None:
    assert (block_of(one) == block_of(other)) is same


def test_the_address_with_the_most_connections_makes_way() -> None:
    addresses: Addresses[Guest] = Addresses()
    assert addresses.crowded("new") is None
    few, many = [Guest(2, n) for n in range(2)], [Guest(2, n) for n in range(5)]
    for guest in few:
        addresses.add("few", guest)
    for guest in many:
        addresses.add("many", guest)
    assert addresses.crowded("new") == "many"
    assert addresses.crowded("few") == "many"
    assert addresses.crowded("many") is None
    for guest in many[:3]:
        addresses.discard("many", guest)
    assert addresses.count("many") == 2
    assert addresses.crowded("few") is None
    assert addresses.crowded("new") in ("few", "many")
    addresses.discard("many", many[3])
    assert addresses.crowded("new") == "few"
    addresses.discard("few", few[0])
    assert addresses.crowded("new") is None, "nobody has more than one"
    addresses.discard("few", few[0])
    assert addresses.count("few") == 1


def test_an_address_is_forgotten_with_its_last_connection() -> None:
    addresses: Addresses[Guest] = Addresses()
    guests = [Guest(0, 0) for _ in range(3)]
    for guest in guests:
        addresses.add("one", guest)
    for guest in guests:
        addresses.discard("one", guest)
    assert addresses.count("one") == 0
    assert addresses.crowded("new") is None
    addresses.add("one", guests[0])
    addresses.add("one", guests[1])
    assert addresses.crowded("new") == "one"


def test_the_least_useful_then_longest_unused_connection_is_closed() -> None:
    addresses: Addresses[Guest] = Addresses()
    for rank, used_s in ((2, 5.0), (1, 9.0), (3, 0.0), (1, 8.0)):
        addresses.add("one", Guest(rank, used_s))
    assert addresses.least("one").standing == (1, 8.0)


def test_of_very_many_connections_others_are_compared_each_time() -> None:
    addresses: Addresses[Guest] = Addresses()
    guests = [Guest(2, float(n)) for n in range(2_000)]
    for guest in reversed(guests):
        addresses.add("one", guest)
    found = {addresses.least("one") for _ in range(8)}
    assert guests[0] in found
    assert addresses.count("one") == 2_000
