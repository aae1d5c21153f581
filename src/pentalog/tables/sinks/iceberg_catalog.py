"""The catalog that knows Iceberg tables: a file beside them, or one that the user has.

In the file the tables are called `pentalog.<layer>`, for it belongs to one pipeline.  In a catalog
that others use too they are `<namespace>.<layer>`, and what the catalog has under such a name is
ours only if it lies where the pipeline says.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pentalog.tables.pipeline import CATALOGS, TableAt
from pentalog.tables.sinks.refusals import Busy, CatalogFailed, SinkRefused

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

CATALOG: Final = "pentalog"
"""What the file calls itself, and the namespace in it."""
_OURS: Final = ("name", "namespace")
"""Keys of `catalog` that are not the library's properties."""
_TOLD_MAX: Final = 500
_OPENINGS_MAX: Final = 5
_MADE_BY_ANOTHER: Final = ("already exists", "duplicate key")
_DEFAULT: Final = "default"
_ODD: Final = re.compile(r"[^a-z0-9_]")
_SAME: Final = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}
_SECRET: Final = re.compile(
    r"secret|token|password|credential|access.key|account.key|authorization|connection.string",
    re.IGNORECASE,
)
_NESTED: Final = ("auth", "ssl")
"""Properties that the library wants as tables in tables; the others have names with dots."""
_ELSEWHERE: Final = (
    "give the pipeline another name, or its tables other ones by catalog = { namespace = '..' }"
)
_ACCESS: Final = {
    "access_key_id": ("s3.access-key-id", "client.access-key-id"),
    "secret_access_key": ("s3.secret-access-key", "client.secret-access-key"),
    "session_token": ("s3.session-token", "client.session-token"),
    "region": ("s3.region", "client.region"),
    "endpoint_url": ("s3.endpoint",),
}
"""Access to S3: as `storage_options` call it without `AWS_`, and as Iceberg does."""
_IDENTITY: Final = frozenset({"access_key_id", "secret_access_key", "session_token"})
"""Parts that are no use but together."""


def home(at: TableAt) -> Path:
    """The directory of the pipeline's tables, where the file is."""
    folder = Path(at.uri.removesuffix(f"/{at.layer}"))
    return folder.parent if folder == Path(at.uri) else folder


def identifier(at: TableAt) -> tuple[str, ...]:
    """The table's name in its catalog: the levels of its namespace, then its own."""
    if not at.catalog:
        return (CATALOG, Path(at.uri).relative_to(home(at)).as_posix().replace("/", "_"))
    given = at.catalog.get("namespace", "")
    levels = given.split(".") if given else [_plain(at.pipeline)]
    name = at.layer if at.uri.endswith(f"/{at.layer}") else at.uri.rpartition("/")[2]
    return (*levels, _plain(name))


def _plain(name: str) -> str:
    """A name that every catalog takes."""
    return _ODD.sub("_", name.lower())


def open_catalog(at: TableAt) -> Catalog:
    """The catalog; of several that open a new one in SQL at once, each finds its tables made."""
    for _ in range(_OPENINGS_MAX):
        try:
            return _open(at)
        except Exception as error:
            if not any(word in str(error) for word in _MADE_BY_ANOTHER):
                raise
    return _open(at)


def _open(at: TableAt) -> Catalog:
    if not at.catalog:
        from pyiceberg.catalog.sql import SqlCatalog

        home(at).mkdir(parents=True, exist_ok=True)
        place = f"sqlite:///{home(at)}/iceberg.db"
        return SqlCatalog(CATALOG, uri=place, warehouse=str(home(at)))
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    given: dict[str, Any] = {**_granting(at.storage_options), **properties(at.catalog)}
    try:
        return load_catalog(_name(at), **given)
    except NotInstalledError as error:
        raise SinkRefused(f"{at.uri}: catalog: {_without_secrets(at, error)}") from None
    except ValueError as error:
        raise SinkRefused(
            f"{at.uri}: catalog: {_without_secrets(at, error)}; give catalog = {{ type = 'rest',"
            f" uri = 'https://..' }}, of type {', '.join(CATALOGS)}"
        ) from None


def properties(given: Mapping[str, str]) -> dict[str, Any]:
    """What the library is given of `catalog`."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        levels = key.split(".") if key.startswith(tuple(f"{one}." for one in _NESTED)) else [key]
        inner = found
        for level in levels[:-1]:
            inner = inner.setdefault(level, {})
        if key not in _OURS:
            inner[levels[-1]] = value
    return found


def make_namespace(catalog: Catalog, name: tuple[str, ...]) -> None:
    """All levels that are not there; nothing is asked of a catalog that has them."""
    for count in range(1, len(name)):
        if not catalog.namespace_exists(name[:count]):
            catalog.create_namespace_if_not_exists(name[:count])


def check_ours(at: TableAt, table: Table) -> None:
    """Refuse a table of somebody else that happens to have the name."""
    if at.catalog and _place(table.location()) != _place(at.uri):
        raise SinkRefused(f"{_taken(at)} at {table.location()}; {_ELSEWHERE}")


def _taken(at: TableAt) -> str:
    return f"{at.uri}: the catalog has a table {'.'.join(identifier(at))}"


def _place(location: str) -> str:
    """Without what writers do not agree about."""
    scheme, _, rest = location.rstrip("/").rpartition("://")
    return rest if scheme in ("", "file") else f"{_SAME.get(scheme, scheme)}:{rest}"


def granted(at: TableAt, table: Table) -> dict[str, str]:
    """`storage_options` and, for what they leave open, what the catalog gives for the table."""
    given = _given(at.storage_options)
    found = dict(at.storage_options)
    for ours, theirs in _ACCESS.items():
        if ours in given or (ours in _IDENTITY and not _IDENTITY.isdisjoint(given)):
            continue
        values = (table.io.properties.get(name) for name in theirs)
        value = next(filter(None, values), None)
        if value:
            found[f"AWS_{ours.upper()}"] = value
    return found


def _granting(options: Mapping[str, str]) -> dict[str, str]:
    """`storage_options`, as properties of the catalog."""
    given = _given(options)
    return {theirs[0]: given[ours] for ours, theirs in _ACCESS.items() if ours in given}


def _given(options: Mapping[str, str]) -> dict[str, str]:
    found = {name.lower().removeprefix("aws_"): value for name, value in options.items() if value}
    if "endpoint" in found:
        found.setdefault("endpoint_url", found["endpoint"])
    return found


@contextmanager
def failing(at: TableAt) -> Iterator[None]:
    """What catalogs and their clients raise, in our words and without secrets.

    Their own errors would come with everything that was said to them.
    """
    from pyiceberg.exceptions import (
        CommitFailedException,
        NoSuchIcebergTableError,
        NoSuchTableError,
        TableAlreadyExistsError,
    )

    told = (SinkRefused, Busy, CatalogFailed, CommitFailedException, NoSuchTableError)
    try:
        yield
    except NoSuchIcebergTableError:
        raise SinkRefused(f"{_taken(at)} that is no Iceberg table; {_ELSEWHERE}") from None
    except (*told, TableAlreadyExistsError):
        raise
    except Exception as error:
        if not at.catalog:
            raise
        text = f"{type(error).__name__}: {_without_secrets(at, error)}"
        raise CatalogFailed(
            f"{at.uri}: the catalog, or its access to the store, failed: {text}; look at catalog"
            " and storage_options of the pipeline"
        ) from None


def _without_secrets(at: TableAt, error: Exception) -> str:
    from pyiceberg.utils.config import Config

    text = " ".join(str(error).split())
    kept = Config().get_catalog_config(_name(at)) or {}
    for given in (at.catalog, at.storage_options, kept):
        for key, value in given.items():
            for one in _secrets(key, str(value)):
                text = text.replace(one, "***")
    return text[:_TOLD_MAX]


def _secrets(key: str, value: str) -> list[str]:
    if _SECRET.search(key):
        return [one for one in (value, value.rpartition(":")[2]) if one]
    password = urllib.parse.urlsplit(value).password if "://" in value else None
    return [password, urllib.parse.unquote(password)] if password else []


def _name(at: TableAt) -> str:
    return at.catalog.get("name", _DEFAULT)
