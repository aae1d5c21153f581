"""Where tables lie: a local directory or an object store, through one file system each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pentalog.tables.pipeline import is_local

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


class StorageError(Exception):
    """An address nothing can be stored at; the text says what can."""


class Storage(NamedTuple):
    """A file system and the directory in it that belongs to one table."""

    filesystem: FileSystem
    root: str
    is_local: bool

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def make_folder(self, name: str = "") -> None:
        # Object stores have no directories, only names with slashes.
        if self.is_local:
            self.filesystem.create_dir(self.path(name) if name else self.root, recursive=True)

    def exists(self, name: str) -> bool:
        from pyarrow.fs import FileType

        found = self.filesystem.get_file_info(self.path(name))
        return bool(found.type != FileType.NotFound)

    def read(self, name: str) -> bytes:
        with self.filesystem.open_input_stream(self.path(name)) as file:
            return bytes(file.read())

    def remove(self, names: list[str]) -> None:
        for name in names:
            if self.exists(name):
                self.filesystem.delete_file(self.path(name))

    def listed(self, folder: str) -> list[tuple[str, float]]:
        """Every file below `folder`, and when it was written."""
        from pyarrow.fs import FileSelector, FileType

        chosen = FileSelector(self.path(folder), allow_not_found=True, recursive=True)
        return sorted(
            (one.path.removeprefix(f"{self.root}/"), one.mtime_ns / 1e9)
            for one in self.filesystem.get_file_info(chosen)
            if one.type == FileType.File
        )

    def remove_all(self) -> None:
        """The directory and whatever is in it, if it is there."""
        from pyarrow.fs import FileType

        if self.filesystem.get_file_info(self.root).type == FileType.Directory:
            self.filesystem.delete_dir(self.root)

    def sync(self, name: str) -> None:
        """Make a file and its directory entry outlive a power cut; object stores do so alone."""
        if not self.is_local:
            return
        for path in (self.path(name), os.path.dirname(self.path(name))):
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)


def for_spark(path: str) -> str:
    """A local path as Spark must be told it.

    Bare, it would mean the file system that Hadoop's configuration names, on a YARN often HDFS.
    """
    return f"file://{path}"


def storage_of(uri: str, options: Mapping[str, str]) -> Storage:
    from pyarrow import fs

    if is_local(uri):
        return Storage(fs.LocalFileSystem(), uri.rstrip("/"), True)
    scheme, _, rest = uri.partition("://")
    if scheme == "file":
        return Storage(fs.LocalFileSystem(), rest.rstrip("/"), True)
    if scheme in ("s3", "s3a"):
        return Storage(fs.S3FileSystem(**_s3(options)), rest.rstrip("/"), False)
    if scheme in ("gs", "abfs", "abfss"):
        filesystem, root = fs.FileSystem.from_uri(uri)
        return Storage(filesystem, root.rstrip("/"), False)
    raise StorageError(
        f"{uri}: cannot store at {scheme}://; use a directory, s3://, gs:// or abfs://"
    )


def _s3(options: Mapping[str, str]) -> dict[str, Any]:
    """The options of the table library, as the file system calls them."""
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    found: dict[str, Any] = {}
    for theirs, ours in (
        ("access_key_id", "access_key"),
        ("secret_access_key", "secret_key"),
        ("session_token", "session_token"),
        ("region", "region"),
    ):
        if theirs in given:
            found[ours] = given[theirs]
    endpoint = given.get("endpoint_url") or given.get("endpoint")
    if endpoint:
        scheme, divider, host = endpoint.partition("://")
        found["endpoint_override"] = host if divider else endpoint
        found["scheme"] = scheme if divider else "https"
    return found
