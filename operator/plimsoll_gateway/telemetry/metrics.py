"""Metrics of the gateway. Labels are limited to existing models and keys, never taken from requests.

Series of deleted models and keys stay until their last values have been scraped.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, RoutingTable, TableStore
from plimsoll_gateway.keys.keyring import Keyring
from plimsoll_gateway.telemetry.label_sets import MOST_GONE, FamilyT, Owners, Series
from plimsoll_telemetry.exposition import Exposition, expose

CLIENT_GONE = 499  # status code for requests whose client disconnected before the response
LABELS = ("namespace", "model")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Families:
    """All metrics of one gateway, on a separate registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, buckets=SECONDS, registry=registry)
        self.requests = counter(
            "plimsoll_gateway_requests",
            "Requests answered, by status code (499: the client disconnected). Unknown models share an empty label.",
            (*LABELS, "code"),
        )
        self.in_flight = gauge("plimsoll_gateway_requests_in_flight", "Requests being answered.", LABELS)
        self.retries = counter(
            "plimsoll_gateway_retries",
            "Requests sent again, to another replica if possible, by the reason the first attempt failed.",
            (*LABELS, "reason"),
        )
        self.held = gauge("plimsoll_gateway_held", "Requests that wait for a ready replica of their model.", LABELS)
        text = "Seconds from the first request without a replica until one was ready, and until a response began."
        self.cold_start = histogram("plimsoll_gateway_cold_start_seconds", text, (*LABELS, "until"))
        text = "Requests refused because too many of the model were waiting."
        self.refused = counter("plimsoll_gateway_refused", text, LABELS)
        text = "Requests refused because held request bodies filled their limit."
        self.refused_bodies = counter("plimsoll_gateway_refused_bodies", text)
        self.body_bytes = gauge("plimsoll_gateway_body_bytes", "Bytes of request bodies held until a response begins.")
        self.connections = gauge("plimsoll_gateway_connections", "Connections of clients and probes.")
        text = "Connections closed at the limit: idle ones evicted, or new ones refused."
        self.connections_closed = counter("plimsoll_gateway_connections_closed", text, ("why",))
        self.ejections = counter("plimsoll_gateway_ejections", "Ejections of replicas that did not respond.", LABELS)
        self.broken_streams = counter("plimsoll_gateway_broken_streams", "Responses that ended early.", LABELS)
        text = "Seconds from the arrival of a request to the replica's response headers."
        self.first_byte = histogram("plimsoll_gateway_upstream_first_byte_seconds", text, LABELS)
        text = "Seconds from the arrival of a request to the end of the replica's response."
        self.duration = histogram("plimsoll_gateway_upstream_seconds", text, LABELS)
        text = "Responses of replicas that treated all API keys as one tenant."
        self.unbelieved = counter("plimsoll_gateway_unbelieved", text, LABELS)
        text = "Seconds that requests with an API key waited in the fair queue."
        self.turn = histogram("plimsoll_gateway_turn_seconds", text, LABELS)
        text = "Requests answered, by API key and status code."
        self.key_requests = counter("plimsoll_gateway_key_requests", text, ("key", "code"))
        text = "Tokens used by each API key, as far as responses reported them."
        self.key_tokens = counter("plimsoll_gateway_key_tokens", text, ("key",))
        text = "Requests that met or missed an objective of their model: availability, first_token or inter_token."
        self.objectives = counter("plimsoll_gateway_objective_requests", text, (*LABELS, "objective", "outcome"))


class Metrics(Families):
    """Metrics with the series of models and keys, which are removed with them."""

    def __init__(self, store: TableStore, keyring: Keyring | None = None) -> None:
        super().__init__()
        keyring = keyring or Keyring(None)
        self._store = store
        self._keyring = keyring
        self._models: Owners[ObjectKey] = Owners()
        self._keys: Owners[str] = Owners()
        self._nobody = Series(("", ""))  # for requests that belong to no model
        self.registry.register(_ReplicaCollector(store))
        self.registry.register(_ObjectiveCollector(store))
        self.registry.register(_KeyCollector(keyring))
        store.listen(lambda table: self._keep_models(table, MOST_GONE))

    def of(self, model: ObjectKey, family: FamilyT, *more: str) -> FamilyT:
        """Return a model's series of a metric; `more`: values of the labels after its own two."""
        return self._models.of(model, model).of(family, *more)

    def _of_key(self, key: str, family: FamilyT, *more: str) -> FamilyT:
        """Return a key's series of a metric."""
        return self._keys.of(key, (key,)).of(family, *more)

    def _keep_models(self, table: RoutingTable | None, most_gone: int = 0) -> None:
        self._models.keep(_keys_of(table), most_gone)

    def answered(self, model: Model | None, code: int) -> None:
        """Count a request with this status code."""
        if model is None:
            self._nobody.of(self.requests, str(code)).inc()
        else:
            self.of(model.key, self.requests, str(code)).inc()

    def key_answered(self, key: str, code: int) -> None:
        """Count a request of an API key with this status code."""
        self._of_key(key, self.key_requests, str(code)).inc()

    def key_used(self, key: str, tokens: int) -> None:
        """Add the tokens that a request of an API key used."""
        self._of_key(key, self.key_tokens).inc(tokens)

    def render(self, accept: bytes | None) -> Exposition:
        """Return the response to a scrape with this header Accept, then remove the series of deleted models and
        keys.
        """
        told = expose(self.registry, (accept or b"").decode("latin-1"))
        keys = self._keyring.keys
        self._keys.keep(frozenset() if keys is None else keys.names)
        self._keep_models(self._store.current)
        return told


def _keys_of(table: RoutingTable | None) -> frozenset[ObjectKey]:
    return frozenset() if table is None else frozenset(model.key for model in table.models)


class _KeyCollector(Collector):
    """Collects the number of valid keys, and the invalid files, at the time of the scrape."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def collect(self) -> Iterator[GaugeMetricFamily]:
        keys = self._keyring.keys
        if keys is None:
            return
        yield GaugeMetricFamily("plimsoll_gateway_keys", "Valid API keys.", value=len(keys.names))
        damaged = GaugeMetricFamily("plimsoll_gateway_damaged_keys", "1 for each invalid key file.", labels=["file"])
        for file in keys.damaged:
            damaged.add_metric([file], 1)
        yield damaged


class _ReplicaCollector(Collector):
    """Counts replicas at the time of the scrape, so that deleted models leave no series."""

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def collect(self) -> Iterator[GaugeMetricFamily]:
        table = self._store.current
        known = GaugeMetricFamily("plimsoll_gateway_replicas", "Known replicas.", labels=LABELS)
        ready = GaugeMetricFamily("plimsoll_gateway_ready_replicas", "Ready replicas.", labels=LABELS)
        for model in table.models if table is not None else ():
            labels = (model.key.namespace, model.key.name)
            known.add_metric(labels, len(model.replicas))
            ready.add_metric(labels, sum(replica.ready for replica in model.replicas))
        yield known
        yield ready


class _ObjectiveCollector(Collector):
    """Collects the objectives of models, which alerts compare the counts with."""

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def collect(self) -> Iterator[GaugeMetricFamily]:
        table = self._store.current
        shares = GaugeMetricFamily(
            "plimsoll_gateway_objective_ratio",
            "Share of requests that are to meet an objective of their model, from 0 to 1.",
            labels=(*LABELS, "objective"),
        )
        times = GaugeMetricFamily(
            "plimsoll_gateway_objective_seconds",
            "Seconds that an objective of a model allows: first_token or inter_token.",
            labels=(*LABELS, "objective"),
        )
        for model in table.models if table is not None else ():
            for name, share, seconds in model.objectives.all():
                shares.add_metric((*model.key, name), share)
                if seconds is not None:
                    times.add_metric((*model.key, name), seconds)
        yield shares
        yield times
