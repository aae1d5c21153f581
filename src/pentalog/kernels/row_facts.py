"""Columns of rows that become records, in Arrow's layout, and what encoding them gives."""

from __future__ import annotations

from typing import NamedTuple

from pentalog.kernels.facts import Buffer


class Cells(NamedTuple):
    """A column of byte strings, each of which may be null."""

    validity: Buffer | None
    """One bit per row, lowest first; None if no row is null."""
    offsets: Buffer
    """Native i32: where each row's bytes start, and behind the last row where they end."""
    data: Buffer
    first: int
    """Which row of these buffers is the first of the column."""


class HeaderCells(NamedTuple):
    """A column of lists of (name, value)."""

    validity: Buffer | None
    offsets: Buffer
    """As in `Cells`, but counting entries of `names` and `values`."""
    first: int
    names: Cells
    values: Cells


class Producing(NamedTuple):
    """Who writes the batches."""

    producer_id: int
    producer_epoch: int
    attributes: int


class EncodedRows(NamedTuple):
    """Rows as whole record batches."""

    data: bytearray
    """Batches, one behind another."""
    batches: list[tuple[int, int, int, int]]
    """(partition, start, end, records) of each, in the order in which they must be written."""
    digest: int
    """Of keys and values, whatever the order and the partitions; digests of parts add up."""
