"""The registry, the table in the README and the error table agree with each other."""

from __future__ import annotations

import re
from pathlib import Path

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

import pentalog.protocols.kafka as door
from pentalog.broker.security import OPERATIONS
from pentalog.model import errors
from pentalog.model.errors import BrokerError
from pentalog.protocols.kafka.api import APIS
from pentalog.protocols.kafka.authorization import NEEDS

FOLDER = Path(door.__file__).parent
ROW = re.compile(r"\| (\d+) \| (\w+) \| (\d+)(?:-(\d+))? \| `api/(\w+)\.py` \|")
# Advertised by Apache Kafka 4.3.1.
KAFKA = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6),
    11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 18: (0, 4),
    19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5),
    27: (1, 2), 28: (0, 5), 61: (0, 0), 65: (0, 0), 66: (0, 2), 32: (1, 4), 33: (0, 2),
    34: (1, 2), 35: (1, 5), 37: (0, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1),
    46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 57: (0, 2), 60: (0, 2), 68: (0, 1), 69: (0, 1),
    74: (0, 1), 75: (0, 0),
    17: (0, 1), 29: (1, 3), 30: (1, 3), 31: (1, 3), 36: (0, 2), 38: (1, 3), 39: (1, 2),
    40: (1, 2), 41: (1, 3), 50: (0, 0), 51: (0, 0),
}  # fmt: skip


def test_the_readme_lists_what_is_served() -> None:
    listed = {
        int(key): (name, int(lowest), int(highest or lowest))
        for key, name, lowest, highest, _ in ROW.findall((FOLDER / "README.md").read_text())
    }
    served = {api.key: (api.name, api.version_min, api.version_max) for api in APIS.values()}
    assert listed == served


def test_every_module_is_registered_under_its_key() -> None:
    modules = {int(path.stem[1:3]) for path in (FOLDER / "api").glob("k*.py")}
    assert modules == set(APIS)
    for key, api in APIS.items():
        assert api_key_map[key].replace("_", "") == api.name.lower()


def test_versions_are_those_of_kafka() -> None:
    for key, api in APIS.items():
        lowest = api.version_min if api.advertised_min is None else api.advertised_min
        assert (lowest, api.version_max) == KAFKA[key]
        for version in range(api.version_min, api.version_max + 1):
            assert EntityType.response in schema_name_map[api_key_map[key]][version]


def test_every_request_says_what_it_needs() -> None:
    assert APIS.keys() == NEEDS.keys()
    for needs in NEEDS.values():
        for operation, kind in needs:
            assert operation in OPERATIONS[kind]


def all_subclasses(kind: type) -> set[type]:
    return {below for one in kind.__subclasses__() for below in (one, *all_subclasses(one))}


def test_every_refusal_of_the_core_has_a_code() -> None:
    known = {kind for kind in all_subclasses(BrokerError) if kind.__module__ == errors.__name__}
    assert set(door.PROTOCOL.error_codes) == known
    assert all(isinstance(code, ErrorCode) for code in door.PROTOCOL.error_codes.values())
    assert ErrorCode.invalid_txn_state == 48
