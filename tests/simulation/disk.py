"""A file system in memory that keeps the page cache and the durable content apart.

Data is tracked by sector.  A power cut builds what a journaling file system may leave: synced
data is intact; unsynced sectors are new, old, an intermediate version, or zeros; the size of a
file is any of its unsynced sizes; of the unsynced changes of a directory a prefix survives.
A file whose name was lost is lost, a file whose removal was lost returns.
"""

from __future__ import annotations

from random import Random
from typing import Final

SECTOR: Final = 512
PAGE: Final = 4096
_SECTORS_PER_PAGE: Final = PAGE // SECTOR


class Inode:
    """A regular file."""

    __slots__ = ("cache", "changed_s", "durable", "older", "pages", "sizes", "tags")

    def __init__(self) -> None:
        self.cache = bytearray()
        """What the process reads."""
        self.durable = bytearray()
        """What the disk holds for certain."""
        self.tags: dict[int, int] = {}
        """Dirty sectors, and how many size changes were pending when each was written."""
        self.older: dict[int, list[tuple[int, bytes]]] = {}
        """Earlier unsynced versions of dirty sectors, with their tags."""
        self.sizes: list[int] = []
        """Unsynced changes of the size, in order."""
        self.pages: set[int] = set()
        """Pages that have blocks: writing to them needs no space."""
        self.changed_s = 0.0

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        if not len(data):
            return
        end = position + len(data)
        cache, tags = self.cache, self.tags
        before = len(cache)
        first, last = position // SECTOR, (end - 1) // SECTOR
        for sector in range(first, last + 1):
            if sector in tags:
                at = sector * SECTOR
                version = (tags[sector], bytes(cache[at : at + SECTOR]))
                self.older.setdefault(sector, []).append(version)
        if end > before:
            cache.extend(bytes(end - before))
            self.sizes.append(end)
            # Between the old end and the new data there is a hole: zeros that are not written.
        cache[position:end] = data
        tag = len(self.sizes)
        for sector in range(first, last + 1):
            tags[sector] = tag
        for page in range(position // PAGE, (end - 1) // PAGE + 1):
            self.pages.add(page)

    def truncate(self, size: int) -> None:
        before = len(self.cache)
        if size == before:
            return
        if size < before:
            del self.cache[size:]
            for page in [page for page in self.pages if page * PAGE >= size]:
                self.pages.discard(page)
            self.sizes.append(size)
            if size % SECTOR:
                self.tags[size // SECTOR] = len(self.sizes)
        else:
            self.cache.extend(bytes(size - before))
            self.sizes.append(size)

    def new_pages(self, position: int, length: int) -> list[int]:
        """Pages that a write would have to allocate, in order."""
        if not length:
            return []
        touched = range(position // PAGE, (position + length - 1) // PAGE + 1)
        return [page for page in touched if page not in self.pages]

    def sync(self) -> None:
        if self.tags or self.sizes:
            self.durable = bytearray(self.cache)
            self._mark_clean()

    def sync_range(self, position: int, length: int) -> None:
        """Make one written range and the size durable, as a write with RWF_DSYNC does."""
        if self.sizes:
            self.sync()  # the size goes through the journal, which takes ordered data along
            return
        first, last = position // SECTOR, (position + length - 1) // SECTOR
        self.durable[first * SECTOR : (last + 1) * SECTOR] = self.cache[
            first * SECTOR : (last + 1) * SECTOR
        ]
        for sector in range(first, last + 1):
            self.tags.pop(sector, None)
            self.older.pop(sector, None)

    def fail_sync(self, random: Random) -> None:
        """A sync that failed: any part of the data is durable, and nothing is dirty any more."""
        self.durable = self._survive(random)
        self._mark_clean()

    def cut_power(self, random: Random) -> None:
        if self.tags or self.sizes:
            self.durable = self._survive(random)
        self.cache = bytearray(self.durable)
        self._mark_clean()
        self.pages = {page for page in self.pages if page * PAGE < len(self.cache)}

    def evict(self) -> None:
        """Drop clean pages: they are read from the disk again."""
        if not self.tags and not self.sizes:
            self.cache = bytearray(self.durable)

    @property
    def dirty(self) -> bool:
        return bool(self.tags or self.sizes)

    def _mark_clean(self) -> None:
        self.tags.clear()
        self.older.clear()
        self.sizes.clear()

    def _survive(self, random: Random) -> bytearray:
        """One content that the disk may hold after a power cut now."""
        style = random.choice(("all", "none", "pages", "pages", "sectors", "prefix", "holes"))
        if style == "all" or not (self.tags or self.sizes):
            return bytearray(self.cache)
        if style == "none":
            return bytearray(self.durable)
        # How many of the size changes made it.  Often all: a file longer than its data.
        count = len(self.sizes)
        kept = count if style == "holes" or random.random() < 0.5 else random.randint(0, count)
        sizes = self.sizes[:kept]
        size = sizes[-1] if sizes else len(self.durable)
        # Behind a truncation that survived, the old content does not return.
        intact = min([len(self.durable), *sizes])
        content = bytearray(self.durable[:intact])
        content.extend(bytes(max(0, size - len(content))))
        del content[size:]
        limit = random.randint(0, max(self.tags, default=0) + 1)
        lucky: dict[int, bool] = {}
        for sector in sorted(self.tags):
            if sector * SECTOR >= size:
                break
            if style == "prefix":
                written = sector < limit
            elif style in ("pages", "holes"):
                page = sector // _SECTORS_PER_PAGE
                written = lucky.setdefault(page, random.random() < 0.6)
            else:
                written = random.random() < 0.6
            if written:
                self._put_version(content, sector, size, kept, random)
        return content

    def _put_version(
        self, content: bytearray, sector: int, size: int, kept: int, random: Random
    ) -> None:
        """Put one version of a sector that fits the surviving size changes, the newest mostly."""
        start = sector * SECTOR
        # A version from before a truncation that removed the sector is gone for good.
        gone = max(
            (number for number, at in enumerate(self.sizes[:kept], 1) if at <= start), default=-1
        )
        newest = (self.tags[sector], bytes(self.cache[start : start + SECTOR]))
        versions = [
            data
            for tag, data in [*self.older.get(sector, ()), newest]
            if tag <= kept and tag >= gone
        ]
        if not versions:
            return
        data = versions[-1] if random.random() < 0.7 else random.choice(versions)
        end = min(start + len(data), size)
        content[start:end] = data[: end - start]


class Directory:
    """Names in the cache, names on the disk, and the changes between them in order."""

    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.pending: list[tuple[str, str, Inode | Directory | None]] = []
        """(old name or "", new name or "", what is linked)."""

    def link(self, name: str, what: Inode | Directory) -> None:
        self.entries[name] = what
        self.pending.append(("", name, what))

    def unlink(self, name: str) -> None:
        del self.entries[name]
        self.pending.append((name, "", None))

    def rename(self, old: str, new: str) -> None:
        what = self.entries.pop(old)
        self.entries[new] = what
        self.pending.append((old, new, what))

    def sync(self) -> None:
        if self.pending:
            self.durable = dict(self.entries)
            self.pending.clear()

    def cut_power(self, random: Random) -> None:
        if self.pending:
            count = random.choice((0, len(self.pending), random.randint(0, len(self.pending))))
            for old, new, what in self.pending[:count]:
                if old:
                    self.durable.pop(old, None)
                if new and what is not None:
                    self.durable[new] = what
            self.pending.clear()
        self.entries = dict(self.durable)
        for entry in self.entries.values():
            entry.cut_power(random)

    def walk_files(self) -> list[tuple[str, Inode]]:
        """Every file below, with its path."""
        found: list[tuple[str, Inode]] = []
        for name, entry in self.entries.items():
            if isinstance(entry, Directory):
                found += [(f"{name}/{path}", inode) for path, inode in entry.walk_files()]
            else:
                found.append((name, entry))
        return found


class Disk:
    """The whole file system.  It outlives the processes that use it."""

    def __init__(self) -> None:
        self.root = Directory()
        self.space_pages: int | None = None
        """Pages that may still be allocated; None while there is room for everything."""
        self.renames_fail = 0.0
        """Share of renames that need a block of their own, while the disk is full."""

    def cut_power(self, random: Random) -> None:
        self.root.cut_power(random)

    def evict(self) -> None:
        for _, inode in self.root.walk_files():
            inode.evict()
