"""/metrics for Prometheus: the engine's own counts, read at each scrape, and what only the server sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.ports import AsyncEngine

__all__ = ["Metrics", "metrics"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters and histograms of one server, in a registry of their own."""

    def __init__(self, worker: AsyncEngine) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.registry.register(EngineCollector(worker))
        self._requests = Counter(
            "octavo_http_requests", "HTTP requests answered", ["endpoint", "status"], registry=self.registry
        )
        self._seconds = self._histogram(
            "octavo_http_request_seconds", "From request to complete reply", "endpoint"
        )
        self._first = self._histogram("octavo_first_token_seconds", "From request to a sample's first token")
        self._next = self._histogram("octavo_next_token_seconds", "Between tokens of one sample")

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=SECONDS, registry=self.registry)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Counts one HTTP request."""
        self._requests.labels(endpoint, status).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def tokens(self, seconds: float, count: int, *, first: bool) -> None:
        """Counts a step that gave one sample `count` tokens, `seconds` after its last step or its start."""
        if first:
            self._first.observe(seconds)
            return
        for _ in range(count):
            self._next.observe(seconds / count)

    def page(self) -> bytes:
        """All metrics as text. Asks the engine, so it may wait for a step to end."""
        return generate_latest(self.registry)


class EngineCollector(Collector):
    """Reads `stats()` at each scrape, so that the numbers cannot drift from the engine's."""

    def __init__(self, worker: AsyncEngine) -> None:
        self.worker = worker

    def describe(self) -> Iterator[Any]:
        """Nothing: registering must not ask the engine."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        stats = self.worker.stats().as_dict()
        yield pages(stats["pages"])
        yield from requests(stats["requests"])
        yield counter(
            "octavo_tokens", "Prompt tokens computed and cached, tokens generated", "kind", stats["tokens"]
        )
        hits = CounterMetricFamily("octavo_prefix_hits", "Prompts that found pages of others")
        hits.add_metric([], stats["prefix_hits"])
        yield hits
        shifts = CounterMetricFamily("octavo_context_shifts", "Times a full sequence dropped tokens")
        shifts.add_metric([], stats["context_shifts"])
        yield shifts
        yield gauge("octavo_bytes", "Bytes held, by use", "use", flat(stats["bytes"]))
        yield gauge("octavo_tokens_per_second", "Recent speed", "kind", stats["tokens_per_s"])
        yield InfoMetricFamily(
            "octavo_backend", "Attention backend, and why this one", value=words(stats["backend"])
        )
        yield InfoMetricFamily("octavo_recipe", "Formats of the cache", value=words(stats["recipe"]))
        if stats["dca"] is not None:
            yield from dual_chunk(stats["dca"])


def dual_chunk(dca: Mapping[str, Any]) -> Iterator[Any]:
    """Dual Chunk Attention: its settings, and rows that read each band in every layer that takes part."""
    told = {name: value for name, value in dca.items() if name != "rows"}
    yield InfoMetricFamily("octavo_dca", "Dual Chunk Attention", value=words(told))
    yield counter("octavo_dca_rows", "Rows that read each band", "band", dca["rows"])


def pages(groups: Mapping[str, Mapping[str, Mapping[str, int]]]) -> GaugeMetricFamily:
    """Pages by layer group, kind and state; live + cached + free is the total."""
    family = GaugeMetricFamily("octavo_pages", "Pages in the pool", labels=["group", "kind", "state"])
    for group, kinds in groups.items():
        for kind, states in kinds.items():
            for state, count in states.items():
                family.add_metric([group, kind, state], count)
    return family


def requests(counts: Mapping[str, int]) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    """Requests that are in the engine now, and those that were."""
    now = {state: counts[state] for state in ("running", "waiting")}
    ended = {outcome: count for outcome, count in counts.items() if outcome not in now}
    yield gauge("octavo_requests", "Requests in the engine", "state", now)
    yield counter("octavo_requests_ended", "What became of requests", "outcome", ended)


def counter(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested counts under dotted names."""
    found: dict[str, float] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def words(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items()}


async def metrics(request: Request) -> Response:
    """GET /metrics."""
    page = await run_in_threadpool(request.app.state.service.metrics.page)
    return Response(page, media_type=CONTENT_TYPE)
