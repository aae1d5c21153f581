"""The comparison as a reader sees it: medians side by side, and their ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from rows import Load, Row

_LATENCY = (Load.LATENCY, Load.PARTITIONS, Load.TRANSACTIONS)
_PERCENTILES = ("p50", "p90", "p99", "p999", "max")
_PROCESS = (
    ("start", "start_s", "start to first Metadata answer", 1.0, "s"),
    ("start", "rss_idle_bytes", "memory, idle", 2.0**20, "MiB"),
    ("memory", "rss_loaded_bytes", "memory, after all rows", 2.0**20, "MiB"),
    ("memory", "rss_peak_bytes", "memory, peak", 2.0**20, "MiB"),
)
_WIDTH_MIN = 120


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every run of two brokers; ratios are first : second."""

    first: str
    second: str
    results: Sequence[Mapping[str, Any]]

    def values(self, row: str, broker: str, key: str) -> list[float]:
        """What the rounds that count gave."""
        return [
            float(result[key])
            for result in self.results
            if result["row"] == row and result["broker"] == broker and result["counts"]
        ]

    def medians(self, row: str, key: str) -> tuple[float, float]:
        first, second = (
            statistics.median(self.values(row, broker, key)) for broker in (self.first, self.second)
        )
        return first, second

    def has(self, row: str) -> bool:
        return any(result["row"] == row for result in self.results)


def show(
    comparison: Comparison, rows: Sequence[Row], described: Mapping[str, Any], *, command: str
) -> None:
    """Print every table there are results for."""
    console = Console()
    if console.width < _WIDTH_MIN and not console.is_terminal:
        console = Console(width=_WIDTH_MIN)
    others = [row for row in rows if row.load is not Load.TRANSACTIONS]
    if others:
        console.print(_rates(comparison, others))
    transactional = [row for row in rows if row.load is Load.TRANSACTIONS]
    if transactional:
        console.print(_transactions(comparison, transactional))
    delayed = [row for row in rows if row.load in _LATENCY]
    if delayed:
        console.print(_latencies(comparison, delayed))
    console.print(_process(comparison))
    for row in rows:
        console.print(f"{row.name}: {row.title}, acknowledged from {row.durability.value}")
    console.print("machine: " + ", ".join(f"{key} {value}" for key, value in described.items()))
    console.print(f"repeat with: {command}")


def _rates(comparison: Comparison, rows: Sequence[Row]) -> Table:
    table = _rate_table(comparison, "Throughput", unit="msg/s")
    table.caption = "CPU is broker seconds, all threads, per million messages"
    _add_rates(table, comparison, rows, rate="rate", cost="broker_cpu_s_per_million")
    return table


def _transactions(comparison: Comparison, rows: Sequence[Row]) -> Table:
    table = _rate_table(comparison, "Transactions", unit="txn/s")
    table.caption = "CPU is broker seconds, all threads, per thousand transactions"
    _add_rates(table, comparison, rows, rate="transaction_rate", cost="broker_cpu_s_per_thousand")
    return table


def _rate_table(comparison: Comparison, title: str, *, unit: str) -> Table:
    first, second = comparison.first, comparison.second
    table = Table(title=f"{title}: medians and spread; ratios are {first} : {second}")
    table.add_column("row", no_wrap=True)
    table.add_column("durability", no_wrap=True)
    for name in (f"{first} {unit}", f"{second} {unit}", "rate", f"{first} CPU", f"{second} CPU"):
        table.add_column(name, justify="right")
    table.add_column("CPU", justify="right")
    return table


def _add_rates(
    table: Table, comparison: Comparison, rows: Sequence[Row], *, rate: str, cost: str
) -> None:
    for row in rows:
        rates = comparison.medians(row.name, rate)
        costs = comparison.medians(row.name, cost)
        table.add_row(
            row.name,
            row.durability.value,
            *(
                f"{value:,.0f} {_spread(comparison.values(row.name, broker, rate))}"
                for value, broker in zip(rates, (comparison.first, comparison.second), strict=True)
            ),
            f"{rates[0] / rates[1]:.2f}",
            *(f"{value:.3f}" for value in costs),
            f"{costs[0] / costs[1]:.2f}",
        )


def _spread(values: Sequence[float]) -> str:
    half = (max(values) - min(values)) / 2 / statistics.median(values)
    return f"±{half:.0%}" if len(values) > 1 else ""


def _latencies(comparison: Comparison, rows: Sequence[Row]) -> Table:
    table = Table(title="Latency in microseconds: medians of the rounds' percentiles")
    for name in ("row", "durability", "broker"):
        table.add_column(name, no_wrap=True)
    for name in _PERCENTILES:
        table.add_column(name.replace("p999", "p99.9"), justify="right")
    for row in rows:
        pairs = [comparison.medians(row.name, f"{name}_us") for name in _PERCENTILES]
        first = [f"{one:,.0f}" for one, _ in pairs]
        second = [f"{other:,.0f}" for _, other in pairs]
        ratios = [f"{one / other:.2f}" for one, other in pairs]
        table.add_row(row.name, row.durability.value, comparison.first, *first)
        table.add_row("", "", comparison.second, *second)
        table.add_row("", "", "ratio", *ratios, end_section=True)
    return table


def _process(comparison: Comparison) -> Table:
    table = Table(title="The process: medians")
    for name in ("", comparison.first, comparison.second, "ratio"):
        table.add_column(name, justify="right" if name else "left")
    for row, key, title, unit, unit_name in _PROCESS:
        if comparison.has(row):
            first, second = (value / unit for value in comparison.medians(row, key))
            cells = [f"{value:,.2f} {unit_name}" for value in (first, second)]
            table.add_row(title, *cells, f"{first / second:.3f}")
    return table
