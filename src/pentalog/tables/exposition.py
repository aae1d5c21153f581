"""What running pipelines are doing, in the text that Prometheus reads, served over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, NamedTuple

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_TIMEOUT_S: Final = 10


class Metric(NamedTuple):
    name: str
    kind: str
    text: str


METRICS: Final = (
    Metric("rows_total", "counter", "records read since the driver started"),
    Metric("batches_total", "counter", "batches that were committed since the driver started"),
    Metric("dead_letters_total", "counter", "dead letters written since the driver started"),
    Metric("dropped_total", "counter", "rows dropped by rules since the driver started"),
    Metric("batch", "gauge", "number of the newest batch"),
    Metric("batch_seconds", "gauge", "how long the newest batch took"),
    Metric("rows_per_second", "gauge", "rate of the newest batch"),
    Metric("lag_records", "gauge", "records of the topics that the newest batch left"),
    Metric("table_version", "gauge", "number of a table's newest commit"),
)
"""Every name begins with `pentalog_pipeline_`; labels are `pipeline` and, of a table, `table`."""


class PipelineMetrics:
    """Counts what is reported of every batch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, float]] = {one.name: {} for one in METRICS}

    def take(self, progress: Mapping[str, Any]) -> None:
        labels = _labels(pipeline=progress["pipeline"])
        with self._lock:
            for name, amount in (
                ("rows_total", progress["rows"]),
                ("batches_total", 1),
                ("dead_letters_total", progress.get("dead_letters", 0)),
                ("dropped_total", progress.get("dropped", 0)),
            ):
                self._values[name][labels] = self._values[name].get(labels, 0) + amount
            for name, value in (
                ("batch", progress["batch"]),
                ("batch_seconds", progress["batch_ms"] / 1000),
                ("rows_per_second", progress["rows_per_second"]),
                ("lag_records", progress["lag"]),
            ):
                self._values[name][labels] = value
            for table, version in progress.get("versions", {}).items():
                place = _labels(pipeline=progress["pipeline"], table=table)
                self._values["table_version"][place] = version

    def text(self) -> str:
        with self._lock:
            return "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for one in METRICS:
            name = f"pentalog_pipeline_{one.name}"
            yield f"# HELP {name} {one.text}\n# TYPE {name} {one.kind}\n"
            for labels, value in self._values[one.name].items():
                yield f"{name}{labels} {value:.15g}\n"


class MetricsServer:
    """Answers `GET /metrics` until it is left."""

    def __init__(self, address: str, metrics: PipelineMetrics) -> None:
        """Raises ValueError for what is no address, OSError if it cannot be had."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"{address!r} is no HOST:PORT, for example 127.0.0.1:9464")
        handler = type("Handler", (_Handler,), {"metrics": metrics})
        self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_port

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    metrics: PipelineMetrics
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is here")
            return
        body = self.metrics.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Scrapes are not worth a line each."""


def _labels(**values: str) -> str:
    """Names of pipelines and tables have nothing in them that would need escaping."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in values.items()) + "}"
