"""Measured cold starts, and the state kept for them."""

from __future__ import annotations

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, TableStore, build_table
from plimsoll_gateway.telemetry.cold_start import STALE_SECONDS, ColdStarts
from plimsoll_gateway.telemetry.metrics import Metrics

KEY = ObjectKey("ns", "m")
OTHER = Model(ObjectKey("ns", "other"), ("other",), 2.0, "", ())


class Place:
    """Cold starts with a fake clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.store = TableStore()
        self.metrics = Metrics(self.store)
        self.cold = ColdStarts(self.store, self.metrics, lambda: self.now)

    def show(self, *, ready: bool) -> None:
        replica = Replica("r", "http://127.0.0.1:1", ready)
        self.store.replace(build_table([Model(KEY, ("m",), 1.0, "", (replica,)), OTHER]))

    def seconds(self, until: str) -> float:
        value: float = self.metrics.of(KEY, self.metrics.cold_start, until)._sum.get()
        return value

    def wake(self) -> None:
        """Hold a request for three seconds, until a replica is ready."""
        self.show(ready=False)
        self.cold.held(KEY)
        self.now += 3
        self.show(ready=True)


def test_seconds_until_a_replica_and_until_an_answer() -> None:
    place = Place()
    place.wake()
    place.now += 2
    place.cold.answered(KEY)
    place.cold.answered(KEY)
    assert (place.seconds("ready"), place.seconds("first_byte")) == (3, 5)


def test_who_gives_up_counts_for_nothing() -> None:
    place = Place()
    place.show(ready=False)
    place.cold.held(KEY)
    place.cold.released(KEY)
    place.show(ready=True)
    place.cold.answered(KEY)
    assert (place.seconds("ready"), place.seconds("first_byte")) == (0, 0)


def test_a_model_that_is_gone_is_forgotten() -> None:
    place = Place()
    place.wake()
    place.store.replace(build_table([OTHER]))
    assert not place.cold._ready
    place.show(ready=True)
    place.cold.answered(KEY)
    assert place.seconds("first_byte") == 0


def test_an_answer_that_nobody_waited_for_is_forgotten() -> None:
    place = Place()
    place.wake()
    place.now += STALE_SECONDS
    place.show(ready=True)
    assert place.cold._ready
    place.now += 1
    place.show(ready=True)
    assert not place.cold._ready


def test_series_begin_at_nothing_while_a_request_waits() -> None:
    place = Place()
    place.show(ready=False)
    place.cold.held(KEY)
    body = place.metrics.render(None).body.decode()
    for until in ("ready", "first_byte"):
        assert f'cold_start_seconds_count{{model="m",namespace="ns",until="{until}"}} 0.0' in body
