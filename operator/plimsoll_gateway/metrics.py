"""What the gateway counts. Labels are bounded by the models that exist, never by what clients send."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from plimsoll_gateway.keys.keyring import Keyring
from plimsoll_gateway.table import Model, ObjectKey, TableStore

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
CLIENT_GONE = 499  # the code under which a request is counted whose client hung up first
LABELS = ("namespace", "model")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """All series of one gateway, on a registry of their own."""

    def __init__(self, store: TableStore, keyring: Keyring | None = None) -> None:
        keyring = keyring or Keyring(None)
        self.registry = CollectorRegistry()
        # To find a series by its labels costs more than to add to it. These are as many as there are in the registry.
        self._models: dict[ObjectKey, ModelSeries] = {}
        self._answered: dict[tuple[ObjectKey | None, int], Counter] = {}
        self._key_answered: dict[tuple[str, int], Counter] = {}
        self.requests = Counter(
            "plimsoll_gateway_requests",
            "Requests answered, by status code (499: the client hung up). Unknown models share an empty label.",
            (*LABELS, "code"),
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "plimsoll_gateway_requests_in_flight", "Requests being answered.", LABELS, registry=self.registry
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
        self.first_byte = Histogram(
            "plimsoll_gateway_upstream_first_byte_seconds",
            "From the arrival of a request to the headers of the replica's answer.",
            LABELS,
            buckets=SECONDS,
            registry=self.registry,
        )
        self.duration = Histogram(
            "plimsoll_gateway_upstream_seconds",
            "From the arrival of a request to the end of the replica's answer.",
            LABELS,
            buckets=SECONDS,
            registry=self.registry,
        )
        self.unbelieved = Counter(
            "plimsoll_gateway_unbelieved", "Answers of replicas that took all API keys for one tenant.", LABELS,
            registry=self.registry,
        )  # fmt: skip
        self.turn = Histogram(
            "plimsoll_gateway_turn_seconds", "How long requests with an API key waited for their turn.", LABELS,
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.key_requests = Counter(
            "plimsoll_gateway_key_requests", "Requests answered, by API key and status code.", ("key", "code"),
            registry=self.registry,
        )  # fmt: skip
        self.key_tokens = Counter(
            "plimsoll_gateway_key_tokens", "Tokens used by each API key, as far as answers told.", ("key",),
            registry=self.registry,
        )  # fmt: skip
        self.registry.register(_ReplicaCollector(store))
        self.registry.register(_KeyCollector(keyring))

    def of(self, model: Model) -> ModelSeries:
        """The series of one model that every request adds to."""
        found = self._models.get(model.key)
        if found is None:
            found = self._models[model.key] = ModelSeries(self, labels_of(model))
        return found

    def answered(self, model: Model | None, code: int) -> None:
        """A request has been answered so."""
        key = None if model is None else model.key
        found = self._answered.get((key, code))
        if found is None:
            found = self._answered[key, code] = self.requests.labels(*labels_of(model), str(code))
        found.inc()

    def key_answered(self, key: str, code: int) -> None:
        """A request with an API key has been answered so."""
        found = self._key_answered.get((key, code))
        if found is None:
            found = self._key_answered[key, code] = self.key_requests.labels(key, str(code))
        found.inc()

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)


class ModelSeries:
    """Those of one model."""

    def __init__(self, metrics: Metrics, labels: tuple[str, str]) -> None:
        self.in_flight = metrics.in_flight.labels(*labels)
        self.turn = metrics.turn.labels(*labels)
        self.first_byte = metrics.first_byte.labels(*labels)
        self.duration = metrics.duration.labels(*labels)


def labels_of(model: Model | None) -> tuple[str, str]:
    """The label values of a model; one pair for all requests that name none of ours."""
    return ("", "") if model is None else (model.key.namespace, model.key.name)


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
            known.add_metric(labels_of(model), len(model.replicas))
            ready.add_metric(labels_of(model), sum(replica.ready for replica in model.replicas))
        yield known
        yield ready
