"""What the gateway counts. Labels are bounded by the models and keys that exist, never by what clients send.

What is gone keeps its series until a scrape has seen its last figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, RoutingTable, TableStore
from plimsoll_gateway.keys.keyring import Keyring
from plimsoll_gateway.telemetry.fast_series import Count, Family, Level, Spans
from plimsoll_gateway.telemetry.label_sets import MOST_GONE, ChildT, FamilyOf, Owners, Series

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
CLIENT_GONE = 499  # the code under which a request is counted whose client hung up first
LABELS = ("namespace", "model")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """All series of one gateway, on a registry of their own."""

    def __init__(self, store: TableStore, keyring: Keyring | None = None) -> None:
        keyring = keyring or Keyring(None)
        self.registry = CollectorRegistry()
        self._store = store
        self._keyring = keyring
        self._models: Owners[ObjectKey] = Owners()
        self._keys: Owners[str] = Owners()
        self._nobody = Series(("", ""))  # of requests for none of our models
        # What was found of models and keys, by whose, of what, and further labels: one look instead of three.
        self._found: dict[tuple[ObjectKey | str, FamilyOf[Any], tuple[str, ...]], Any] = {}
        self.requests = Family(
            "plimsoll_gateway_requests",
            "Requests answered, by status code (499: the client hung up). Unknown models share an empty label.",
            (*LABELS, "code"),
            Count,
            self.registry,
        )
        self.in_flight = Family(
            "plimsoll_gateway_requests_in_flight", "Requests being answered.", LABELS, Level, self.registry
        )
        self.retries = Counter(
            "plimsoll_gateway_retries", "Second attempts, by what the first ended in.", (*LABELS, "reason"),
            registry=self.registry,
        )  # fmt: skip
        self.held = Gauge(
            "plimsoll_gateway_held", "Requests that wait for a replica of their model to be there.", LABELS,
            registry=self.registry,
        )  # fmt: skip
        self.cold_start = Histogram(
            "plimsoll_gateway_cold_start_seconds",
            "From the first request that found no replica until one was ready, and until an answer began.",
            (*LABELS, "until"),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.refused = Counter(
            "plimsoll_gateway_refused", "Requests refused because too many of the model waited already.", LABELS,
            registry=self.registry,
        )  # fmt: skip
        self.refused_bodies = Counter(
            "plimsoll_gateway_refused_bodies", "Requests refused because the bodies held left no room for theirs.",
            registry=self.registry,
        )  # fmt: skip
        self.body_bytes = Gauge(
            "plimsoll_gateway_body_bytes", "Bytes of request bodies held until an answer begins.",
            registry=self.registry,
        )  # fmt: skip
        self.connections = Gauge(
            "plimsoll_gateway_connections", "Connections of clients, and of probes.", registry=self.registry
        )
        self.connections_closed = Counter(
            "plimsoll_gateway_connections_closed",
            "Connections closed because there were too many: idle ones gave way, or new ones were refused.",
            ("why",),
            registry=self.registry,
        )
        self.ejections = Counter(
            "plimsoll_gateway_ejections", "Times that a replica was found to answer nothing.", LABELS,
            registry=self.registry,
        )  # fmt: skip
        self.broken_streams = Counter(
            "plimsoll_gateway_broken_streams", "Answers that ended early.", LABELS, registry=self.registry
        )
        spans = partial(Spans, SECONDS)
        self.first_byte = Family(
            "plimsoll_gateway_upstream_first_byte_seconds",
            "From the arrival of a request to the headers of the replica's answer.",
            LABELS,
            spans,
            self.registry,
        )
        self.duration = Family(
            "plimsoll_gateway_upstream_seconds",
            "From the arrival of a request to the end of the replica's answer.",
            LABELS,
            spans,
            self.registry,
        )
        self.unbelieved = Counter(
            "plimsoll_gateway_unbelieved", "Answers of replicas that took all API keys for one tenant.", LABELS,
            registry=self.registry,
        )  # fmt: skip
        self.turn = Family(
            "plimsoll_gateway_turn_seconds", "How long requests with an API key waited for their turn.", LABELS,
            spans, self.registry,
        )  # fmt: skip
        self.key_requests = Family(
            "plimsoll_gateway_key_requests", "Requests answered, by API key and status code.", ("key", "code"),
            Count, self.registry,
        )  # fmt: skip
        self.key_tokens = Family(
            "plimsoll_gateway_key_tokens", "Tokens used by each API key, as far as answers told.", ("key",),
            Count, self.registry,
        )  # fmt: skip
        self.registry.register(_ReplicaCollector(store))
        self.registry.register(_KeyCollector(keyring))
        store.listen(lambda table: self._keep_models(table, MOST_GONE))

    def of(self, model: ObjectKey, family: FamilyOf[ChildT], *more: str) -> ChildT:
        """The series of a family that is a model's; `more`: values of the labels behind its own two."""
        found: ChildT | None = self._found.get((model, family, more))
        if found is None:
            found = self._found[model, family, more] = self._models.of(model, model).of(family, *more)
        return found

    def _of_key(self, key: str, family: FamilyOf[ChildT], *more: str) -> ChildT:
        """The same of a key."""
        found: ChildT | None = self._found.get((key, family, more))
        if found is None:
            found = self._found[key, family, more] = self._keys.of(key, (key,)).of(family, *more)
        return found

    def _keep_models(self, table: RoutingTable | None, most_gone: int = 0) -> None:
        self._models.keep(_keys_of(table), most_gone)
        self._found.clear()

    def answered(self, model: Model | None, code: int) -> None:
        """A request has been answered so."""
        if model is None:
            self._nobody.of(self.requests, str(code)).inc()
        else:
            self.of(model.key, self.requests, str(code)).inc()

    def key_answered(self, key: str, code: int) -> None:
        """A request with an API key has been answered so."""
        self._of_key(key, self.key_requests, str(code)).inc()

    def key_used(self, key: str, tokens: int) -> None:
        """An answer to a request with an API key took so many."""
        self._of_key(key, self.key_tokens).inc(tokens)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        text = generate_latest(self.registry)
        keys = self._keyring.keys
        self._keys.keep(frozenset() if keys is None else keys.names)
        self._keep_models(self._store.current)
        return text


def _keys_of(table: RoutingTable | None) -> frozenset[ObjectKey]:
    return frozenset() if table is None else frozenset(model.key for model in table.models)


class _KeyCollector(Collector):
    """Tells at the time of the scrape which keys are usable, and which files are not."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def collect(self) -> Iterator[GaugeMetricFamily]:
        keys = self._keyring.keys
        if keys is None:
            return
        yield GaugeMetricFamily("plimsoll_gateway_keys", "API keys that are usable.", value=len(keys.names))
        damaged = GaugeMetricFamily(
            "plimsoll_gateway_damaged_keys", "1 for each file whose API key is left out.", labels=["file"]
        )
        for file in keys.damaged:
            damaged.add_metric([file], 1)
        yield damaged


class _ReplicaCollector(Collector):
    """Counts replicas at the time of the scrape, so that deleted models leave no series behind."""

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def collect(self) -> Iterator[GaugeMetricFamily]:
        table = self._store.current
        known = GaugeMetricFamily("plimsoll_gateway_replicas", "Replicas known.", labels=LABELS)
        ready = GaugeMetricFamily("plimsoll_gateway_ready_replicas", "Replicas that can answer.", labels=LABELS)
        for model in table.models if table is not None else ():
            labels = (model.key.namespace, model.key.name)
            known.add_metric(labels, len(model.replicas))
            ready.add_metric(labels, sum(replica.ready for replica in model.replicas))
        yield known
        yield ready
